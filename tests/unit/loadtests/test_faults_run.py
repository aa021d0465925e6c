"""The runner finds defects of a system that it runs."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typing_extensions import override

from loadtests.faults.catalogue import Fault, LoadSpec, Outcome
from loadtests.faults.judge import LedgerRow
from loadtests.faults.load import Load
from loadtests.faults.run import Job, Pace, run_jobs
from loadtests.faults.topology import Question, Topology, TopologyError, repeating
from sluicegate.gateway.periods import utc_now
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
        self._rows: list[tuple[float, LedgerRow]] = []
        self._bodies: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @override
    def start(self, stack: ExitStack) -> None:
        self.started += 1
        self._is_struck = self._was_struck = False
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
            self._rows += [(utc_now().timestamp(), found)] * bills
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
            return [row for at, row in self._rows if at >= since]

    @override
    def ask_ledger(self, query: str) -> Sequence[Sequence[object]]:
        return []


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


def run(topology: Echoing, *names: str) -> list[tuple[str, Outcome]]:
    """Return the outcomes of faults, each with the name of its case."""
    jobs = [Job(fault(name), "server") for name in names]
    return [(job.name, outcome) for job, outcome in run_jobs(jobs, lambda *_: topology, PACE)]


@pytest.mark.parametrize(
    ("defect", "finding"),
    [
        ("", ""),
        ("billed twice", "in the ledger twice"),
        ("another tenant's", "belong to another tenant"),
        ("never back", "not well 0 s after the fault's end: worker"),
    ],
)
def test_a_defect_of_a_running_system_is_found(defect: str, finding: str) -> None:
    ((_, (figures, findings)),) = run(Echoing(defect), "strike")

    assert figures["requests"] > 0
    assert bool(findings) == bool(defect)
    assert finding in " ".join(findings)


def test_cases_share_a_system_until_one_has_a_finding() -> None:
    sound, broken = Echoing(), Echoing("never back")

    assert [name for name, _ in run(sound, "one", "two")] == ["echo one server", "echo two server"]
    assert sound.started == 1
    run(broken, "one", "two")
    assert broken.started == 2


def test_a_case_that_breaks_off_is_a_finding() -> None:
    def fail() -> Outcome:
        raise TimeoutError("too long")

    play = Fault(name="play", what="", undo="", topology="echo", play=fail)
    ((_, (_, findings)),) = run_jobs([Job(play, "")], lambda *_: Echoing(), PACE)

    assert findings == ["the case broke off: TimeoutError: too long"]


def test_an_error_of_the_load_itself_is_not_swallowed() -> None:
    spec = LoadSpec(rate=100.0)
    with Echoing() as topology:
        load = Load(topology, spec, seed=1).__enter__()
        topology.keys = {}
        wait_until(load._sending.done, what="the load breaks off")
        with pytest.raises(ExceptionGroup):
            load.__exit__()


def test_an_action_that_fails_in_its_thread_is_not_forgotten() -> None:
    called = threading.Event()

    def fail() -> float:
        called.set()
        raise KeyError("a change")

    with pytest.raises(TopologyError, match="a change"), repeating(fail):
        assert called.wait(10.0)
