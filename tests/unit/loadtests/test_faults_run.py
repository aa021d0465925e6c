"""The runner finds defects of a system that it runs, and goes on where a run ended."""

import itertools
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import override

from loadtests.faults.catalogue import Fault, LoadSpec
from loadtests.faults.judge import LedgerRow
from loadtests.faults.load import Load
from loadtests.faults.report import Record, current_commit, rows
from loadtests.faults.run import Job, Pace, run_jobs
from loadtests.faults.topology import Question, Topology, TopologyError, repeating
from testing.waiting import wait_until

PACE = Pace(quiet=0.2, hold=0.2, settled=0.3, after=0.2, again=0.1)


class Echo:
    """Asks for a number of each seed, whose answer is the number."""

    def questions(self, seed: int) -> Iterator[Question]:
        for number in itertools.count():
            yield Question(path="/", body=f"{seed}-{number}".encode())

    def is_right(self, question: Question, body: bytes) -> bool:
        return question.body == body


class Echoing(Topology):
    """A topology of one server, which answers with what it is sent; `defect` says how wrongly."""

    oracle = Echo()

    def __init__(self, defect: str = "") -> None:
        super().__init__()
        self.keys = {tenant: f"key-of-{tenant}" for tenant in ("north", "south")}
        self.started = 0
        self._defect = defect
        self._is_struck = self._was_struck = False
        self._rows: list[LedgerRow] = []
        self._bodies: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @override
    def start(self, stack: ExitStack) -> None:
        self.started += 1
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.topology = self
        host, port = self._server.server_address[:2]
        self.addresses = [(str(host), port)]
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        for end in (self._server.server_close, thread.join, self._server.shutdown):
            stack.callback(end)

    def answer(self, key: str, body: bytes) -> tuple[str, bytes]:
        """Return the id and the body of an answer, and bill it."""
        tenant = key.removeprefix("Bearer key-of-")
        with self._lock:
            self._bodies[tenant] = body
            found = LedgerRow(id=f"id-{len(self._rows)}", status=200, tenant=tenant, items=1)
            bills = 2 if self._is_struck and self._defect == "billed twice" else 1
            self._rows += [found] * bills
            if self._is_struck and self._defect == "another tenant's":
                return found.id, self._bodies.get("north", body)
            return found.id, body

    @contextmanager
    def strike(self, _: str) -> Iterator[None]:
        self._is_struck = True
        before = len(self._rows)
        yield
        wait_until(lambda: len(self._rows) > before + 20, what="requests of both tenants")
        self._is_struck, self._was_struck = False, True

    @override
    def unwell(self) -> Sequence[str]:
        return ["worker"] if self._was_struck and self._defect == "never back" else []

    @override
    def billed(self, since: float) -> list[LedgerRow]:
        with self._lock:
            return list(self._rows)

    @override
    def ask_ledger(self, query: str) -> Sequence[Sequence[object]]:
        return []

    @override
    def restore(self) -> None:
        self._rows.clear()


class _Server(ThreadingHTTPServer):
    topology: Echoing


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        id_, answer = self.server.topology.answer(self.headers["authorization"], body)
        self.send_response(200)
        self.send_header("x-request-id", id_)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


def fault(name: str) -> Fault:
    load = LoadSpec(rate=100.0, repeated=0.0, hasty=0.0)
    return Fault(name=name, what="", undo="", topology="echo", act=Echoing.strike, load=load)


def run(
    topology: Echoing, path: Path, *names: str, commit: str = "abc", within: float = 60.0
) -> tuple[list[Record], list[Job]]:
    """Return the records of faults by their names, and the jobs that are left."""
    shown: list[Record] = []
    left = run_jobs(
        [Job(fault(name), "server") for name in names],
        lambda *_: topology,
        path,
        commit=commit,
        pace=PACE,
        within=within,
        show=shown.append,
    )
    return shown, left


@pytest.mark.parametrize(
    ("defect", "finding"),
    [
        ("", ""),
        ("billed twice", "in the ledger twice"),
        ("another tenant's", "belong to another tenant"),
        ("never back", "not well 0 s after the fault's end: worker"),
    ],
)
def test_a_defect_of_a_running_system_is_found(tmp_path: Path, defect: str, finding: str) -> None:
    ((record,), _) = run(Echoing(defect), tmp_path / "results", "strike")

    assert record.figures["requests"] > 0
    assert bool(record.findings) == bool(defect)
    assert finding in " ".join(record.findings)


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    path, topology = tmp_path / "results", Echoing()

    first, _ = run(topology, path, "one", "two")
    again, left = run(topology, path, "one", "two", "three")
    other, _ = run(topology, path, "one", commit="def")

    assert [record.case for record in first] == ["echo one server", "echo two server"]
    assert [record.case for record in again] == ["echo three server"]
    assert [record.case for record in other] == ["echo one server"]
    assert not left
    assert topology.started == 3


def test_jobs_for_which_there_is_no_time_are_left(tmp_path: Path) -> None:
    shown, left = run(Echoing(), tmp_path / "results", "one", "two", within=-1.0)

    assert not shown
    assert [job.fault.name for job in left] == ["one", "two"]


def test_a_case_that_breaks_off_is_a_finding(tmp_path: Path) -> None:
    def fail() -> tuple[dict[str, object], list[str]]:
        raise TimeoutError("too long")

    play = Fault(name="play", what="", undo="", topology="echo", play=fail)
    shown: list[Record] = []
    run_jobs(
        [Job(play, "")],
        lambda *_: Echoing(),
        tmp_path / "results",
        commit="abc",
        pace=PACE,
        within=60.0,
        show=shown.append,
    )

    assert shown[0].findings == ["the case broke off: TimeoutError: too long"]
    assert "too long" in "".join(rows(shown))


def test_changed_files_are_another_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], check=True, capture_output=True)  # noqa: S607

    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    for text in ("one", "two", "three", "one"):
        Path("file").write_text(text)
        if not found:
            git("init")
            git("add", "file")
            git("commit", "--message", "A commit")
        found.append(current_commit())

    clean, second, third, again = found
    assert len({clean, second, third}) == 3
    assert again == clean


def test_an_error_of_the_load_itself_is_not_swallowed() -> None:
    def has_ended() -> bool:
        return all(thread.name != "load" for thread in threading.enumerate())

    spec = LoadSpec(rate=100.0)
    with Echoing() as topology:
        load = Load(topology, spec).__enter__()
        topology.keys = {}
        wait_until(has_ended, what="the load breaks off")
        with pytest.raises(ExceptionGroup):
            load.__exit__()


def test_an_action_that_fails_in_its_thread_is_not_forgotten() -> None:
    called = threading.Event()

    def fail() -> float:
        called.set()
        raise KeyError("a change")

    with pytest.raises(TopologyError, match="a change"), repeating(fail):
        assert called.wait(10.0)
