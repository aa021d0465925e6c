"""A complete job tells a gateway what it used."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import OutputFolder
from sluicegate.bulk.options import BulkOptions, Manifest
from sluicegate.bulk.output import JOB
from sluicegate.bulk.settings import read_operator_key
from sluicegate.bulk.usage import BulkUsage
from sluicegate.bulk.usage_report import UsageReporter, usage_reporter
from sluicegate.wire.protocol import Task

DONE = Manifest(
    options=BulkOptions(model="m", task=Task.EMBED, columns=("text",)),
    inputs=(),
    revision="r1",
    algorithm="a",
    state="complete",
    rows=10,
    failed_rows=1,
    usage=BulkUsage(computed=6, hit=1, rows=6, tokens=60),
)


class Listener(HTTPServer):
    """Answers with the next of `statuses`, and keeps what it was sent.

    It answers the path of a key in `answers` with the value; a redirect leads to `elsewhere`.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.elsewhere = ""
        self.answers = {
            "/admin/whoami": b'{"name": "bill", "roles": ["billing"]}',
            "/admin/usage/reports": b'{"counted": true}',
        }
        self.seen: list[tuple[str, str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    """Handles a request for `Listener`."""

    def do_GET(self) -> None:
        """Answer."""
        self._answer()

    def do_POST(self) -> None:
        """Answer."""
        self._answer()

    @override
    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def _answer(self) -> None:
        assert isinstance(self.server, Listener)
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        key = self.headers["authorization"]
        self.server.seen.append((self.path, key, msgspec.json.decode(content) if content else None))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if not status:
            self.wfile.write(b"this is no HTTP\r\n")
            return
        self.send_response(status)
        if self.server.elsewhere:
            self.send_header("location", self.server.elsewhere)
        self.end_headers()
        own = self.server.answers.get(self.path) if status == 200 else None
        self.wfile.write(own or b'{"detail": "there is no tenant"}')


@contextlib.contextmanager
def serving() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with serving() as server:
        yield server


@pytest.fixture
def stranger() -> Iterator[Listener]:
    with serving() as server:
        yield server


def reporter_of(listener: Listener, waited: list[float]) -> UsageReporter:
    url = f"http://127.0.0.1:{listener.server_port}/"
    return UsageReporter(url, tenant="a/b", key="secret", wait=waited.append)


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    (tmp_path / JOB).write_text("0123456789abcdef")
    return OutputFolder(str(tmp_path))


def test_a_job_is_reported_again_until_the_listener_has_it(
    listener: Listener, folder: OutputFolder
) -> None:
    waited: list[float] = []
    listener.statuses = [200, 200, 503, 503, 200]

    reporter = reporter_of(listener, waited)
    reporter.check()
    counted = reporter.report(DONE, folder)

    assert counted
    assert [path for path, _, _ in listener.seen] == [
        *("/admin/whoami", "/admin/tenants/a%2Fb"),
        *["/admin/usage/reports"] * 3,
    ]
    assert {key for _, key, _ in listener.seen} == {"Bearer secret"}
    body = listener.seen[-1][2]
    counts = {name: body[name] for name in ("hit", "collapsed", "computed", "failed", "tokens")}
    assert counts == {"hit": 1, "collapsed": 2, "computed": 6, "failed": 1, "tokens": 60}
    assert (body["id"], body["tenant"], waited) == ("0123456789abcdef", "a/b", [1.0, 2.0])


def test_what_is_refused_is_not_tried_again(listener: Listener) -> None:
    listener.statuses = [404]

    with pytest.raises(BulkStopped, match="404: there is no tenant"):
        reporter_of(listener, []).check()

    assert len(listener.seen) == 1


def test_a_listener_that_is_away_leaves_the_usage_to_the_next_run(folder: OutputFolder) -> None:
    waited: list[float] = []
    reporter = UsageReporter("http://127.0.0.1:1", tenant="a", key="k", wait=waited.append)

    with pytest.raises(BulkStopped, match="run the same command again"):
        reporter.report(DONE, folder)

    assert len(waited) == 4


def test_a_report_that_the_ledger_had_before_is_told_apart(
    listener: Listener, folder: OutputFolder
) -> None:
    listener.answers["/admin/usage/reports"] = b'{"counted": false}'

    assert not reporter_of(listener, []).report(DONE, folder)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_is_sent_to_no_other_host_and_a_redirect_is_no_success(
    listener: Listener, stranger: Listener, folder: OutputFolder, status: int
) -> None:
    listener.statuses = [status, status]
    listener.elsewhere = f"http://127.0.0.1:{stranger.server_port}/admin/usage/reports"
    reporter = reporter_of(listener, [])

    with pytest.raises(BulkStopped, match=str(status)):
        reporter.check()
    with pytest.raises(BulkStopped, match="is not in the ledger"):
        reporter.report(DONE, folder)

    assert stranger.seen == []


def test_no_proxy_learns_the_key(
    listener: Listener, stranger: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{stranger.server_port}")

    reporter_of(listener, []).check()

    assert (len(listener.seen), stranger.seen) == (2, [])


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"{}", b"[1]", b"\xff"])
def test_an_answer_without_a_report_is_no_success(
    listener: Listener, folder: OutputFolder, body: bytes
) -> None:
    listener.answers |= {"/admin/usage/reports": body, "/admin/whoami": body}
    reporter = reporter_of(listener, [])

    with pytest.raises(BulkStopped, match="--usage-url"):
        reporter.check()
    with pytest.raises(BulkStopped, match="is not in the ledger"):
        reporter.report(DONE, folder)


def test_an_operator_who_may_not_report_is_told_before_the_job_runs(listener: Listener) -> None:
    listener.answers["/admin/whoami"] = b'{"name": "vera", "roles": ["operator", "viewer"]}'

    with pytest.raises(BulkStopped, match=r"`vera` .* `billing`"):
        reporter_of(listener, []).check()


def test_what_is_no_http_is_tried_again(listener: Listener) -> None:
    waited: list[float] = []
    listener.statuses = [0, 200, 200]

    reporter_of(listener, waited).check()

    assert waited == [1.0]


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://a", "file:///etc/passwd", "localhost:8081", "http://[", "http://a:b"),
        *("http://user:word@a", "http://a/?b=c"),
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(BulkStopped, match="--usage-url"):
        usage_reporter(url, "a", "k")


@pytest.mark.parametrize("key", ["", "secret\nkey", "secret key ", "secret\0key"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(BulkStopped, match="--usage-key-file") as stopped:
        usage_reporter("http://a", "a", key)

    assert "secret" not in str(stopped.value)


def test_a_key_may_have_letters_of_any_kind(listener: Listener) -> None:
    url = f"http://127.0.0.1:{listener.server_port}"

    usage_reporter(url, "a", "ключ-0123456789").check()

    assert {key.encode("latin-1").decode() for _, key, _ in listener.seen} == {
        "Bearer ключ-0123456789"
    }


def test_a_key_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff\xfe")

    with pytest.raises(BulkStopped, match="--usage-key-file"):
        read_operator_key(tmp_path / "key")
