"""Exports over plain HTTP: over one connection, and otherwise as `requests` sends them."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
import requests
from typing_extensions import override

from testing.ports import free_port
from wire.otlp.session import ExportSession

_HEADERS = {"content-type": "application/x-protobuf", "x-key": "abc"}


class Collector(ThreadingHTTPServer):
    """Answers exports with `status`; keeps what each said, and by which connection it came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.closes_silently = False
        self.answers = threading.Event()
        self.answers.set()
        self.received: list[tuple[str, bytes, dict[str, str]]] = []
        self.ports: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self.answers.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Keep what is sent, and answer."""
        collector: Any = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        collector.answers.wait(60.0)
        names = {name.lower() for name in self.headers}
        headers = {name: ", ".join(self.headers.get_all(name) or ()) for name in names}
        collector.received.append((self.path, body, headers))
        collector.ports.append(self.client_address[1])
        self.send_response(collector.status)
        self.send_header("retry-after", "7")
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b"text")
        self.close_connection = collector.closes_silently

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class ScriptedCollector:
    """Serves one connection by each of `steps`, and the others by none."""

    def __init__(self, *steps: Callable[[socket.socket], object]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, args=(steps,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self, steps: tuple[Callable[[socket.socket], object], ...]) -> None:
        for step in steps:
            with contextlib.suppress(OSError):  # the test has ended
                connection, _ = self._listener.accept()
                with connection:
                    step(connection)


def read_export(connection: socket.socket) -> None:
    """Read a request with the body `spans`."""
    received = b""
    while not received.endswith(b"spans"):
        received += connection.recv(65536) or b"spans"


def answer(connection: socket.socket, status: bytes = b"200 OK") -> None:
    """Answer an export."""
    read_export(connection)
    connection.sendall(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.stop()


@pytest.fixture
def session() -> Iterator[ExportSession]:
    with ExportSession() as opened:
        yield opened


def post(
    session: requests.Session, url: str, body: bytes = b"spans", timeout: float = 60.0
) -> requests.Response:
    """Send as the SDK does."""
    return session.request(
        "POST", url, headers=_HEADERS, data=body, timeout=timeout, allow_redirects=False
    )


def test_exports_go_over_one_connection(collector: Collector, session: ExportSession) -> None:
    answers = [post(session, f"{collector.url}/v1/traces", body) for body in (b"one", b"three")]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [(path, body) for path, body, _ in collector.received] == [
        ("/v1/traces", b"one"),
        ("/v1/traces", b"three"),
    ]
    assert len(set(collector.ports)) == 1


def test_a_collector_receives_what_requests_would_send(
    collector: Collector, session: ExportSession
) -> None:
    url = collector.url.replace("//", "//user:secret@") + "/a path?b=ü"

    post(session, url)
    with requests.Session() as other:
        post(other, url)

    ours, theirs = collector.received
    for received in ours, theirs:
        received[2].pop("accept-encoding")  # nobody reads the body of an answer
    assert ours == theirs
    assert ours[2]["authorization"].startswith("Basic ")


def test_an_answer_has_its_status_headers_and_body(
    collector: Collector, session: ExportSession
) -> None:
    collector.status = 503

    answered = post(session, collector.url)

    assert (answered.status_code, answered.reason) == (503, "Service Unavailable")
    assert answered.headers["Retry-After"] == "7"
    assert answered.text == "text"


def test_a_connection_that_the_collector_closed_is_opened_anew(
    collector: Collector, session: ExportSession
) -> None:
    collector.closes_silently = True
    post(session, collector.url)

    try:
        post(session, collector.url)
    except requests.ConnectionError:
        post(session, collector.url)  # as the SDK does

    assert len(set(collector.ports)) == 2


def test_a_collector_that_does_not_answer_is_a_timeout(
    collector: Collector, session: ExportSession
) -> None:
    collector.answers.clear()

    with pytest.raises(requests.Timeout):
        post(session, collector.url, timeout=0.05)


def test_a_collector_that_is_down_is_a_connection_error(session: ExportSession) -> None:
    with pytest.raises(requests.ConnectionError):
        post(session, f"http://127.0.0.1:{free_port()}")


def test_the_proxy_of_the_environment_is_used(
    collector: Collector, session: ExportSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, collector.url)

    post(session, "http://collector.invalid/v1/traces")

    assert [path for path, _, _ in collector.received] == ["http://collector.invalid/v1/traces"]


def test_other_requests_are_sent_by_requests(collector: Collector, session: ExportSession) -> None:
    answered = session.post(collector.url, data={"a": "b"})

    assert answered.status_code == 200
    assert collector.received[0][1] == b"a=b"


def test_an_argument_that_is_not_of_exports_is_left_to_requests(
    collector: Collector, session: ExportSession
) -> None:
    session.request("POST", collector.url, data=b"spans", params={"a": "b"}, allow_redirects=False)

    assert [path for path, _, _ in collector.received] == ["/?a=b"]


def test_headers_that_change_are_sent_as_they_are(
    collector: Collector, session: ExportSession
) -> None:
    headers = {"x-key": "old", "accept-encoding": "gzip"}

    for value in ("old", "new"):
        headers["x-key"] = value
        session.request(
            "POST", collector.url, data=b"spans", headers=headers, allow_redirects=False
        )

    sent = [received for _, _, received in collector.received]
    assert [received["x-key"] for received in sent] == ["old", "new"]
    assert {received["accept-encoding"] for received in sent} == {"identity"}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://[::1]/v1/traces", ("::1", 80)),
        ("http://[fd00::4318]/v1/traces", ("fd00::4318", 80)),
        ("http://[fd00::1]:4318/v1/traces", ("fd00::1", 4318)),
        ("http://collector.invalid/v1/traces", ("collector.invalid", 80)),
    ],
)
def test_the_address_is_that_of_the_url(
    session: ExportSession,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    address: tuple[str, int],
) -> None:
    connected: list[tuple[str, int]] = []

    def refuse(host: str, port: int, *_: object) -> None:
        connected.append((host, port))
        raise OSError("refused")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    with pytest.raises(requests.ConnectionError):
        post(session, url)

    assert connected == [address]


def test_what_an_idle_connection_was_told_is_no_answer(session: ExportSession) -> None:
    """Some servers and proxies say 408 as they close a connection that nobody uses."""
    may_close, has_closed = threading.Event(), threading.Event()

    def close_when_idle(connection: socket.socket) -> None:
        answer(connection)
        may_close.wait(60.0)
        connection.sendall(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        connection.close()
        has_closed.set()

    with ScriptedCollector(close_when_idle, answer) as collector:
        before = post(session, collector.url)
        may_close.set()
        has_closed.wait(60.0)

        after = post(session, collector.url)

    assert (before.status_code, after.status_code) == (200, 200)


@pytest.mark.parametrize("kind", [requests.Session, ExportSession])
def test_a_collector_may_answer_before_it_has_read_everything(
    kind: type[requests.Session],
) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")

    with ScriptedCollector(refuse) as collector, kind() as session:
        answered = post(session, collector.url, bytes(32 * 1024 * 1024))

    assert answered.status_code == 413


def test_of_a_large_answer_a_part_is_read(session: ExportSession) -> None:
    size = 32 * 1024 * 1024

    def answer_at_length(connection: socket.socket) -> None:
        read_export(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        with contextlib.suppress(OSError):  # it is closed meanwhile
            connection.sendall(bytes(size))

    with ScriptedCollector(answer_at_length, answer) as collector:
        answers = [post(session, collector.url) for _ in range(2)]

    assert [one.status_code for one in answers] == [200, 200]
    assert 0 < len(answers[0].content) < size


def test_the_status_of_half_an_answer_counts(session: ExportSession) -> None:
    """The collector has the spans: sent once more they would be there twice."""

    def answer_in_part(connection: socket.socket) -> None:
        read_export(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")

    with ScriptedCollector(answer_in_part, answer) as collector:
        answers = [post(session, collector.url) for _ in range(2)]

    assert [(one.status_code, one.content) for one in answers] == [(200, b"half"), (200, b"")]


@pytest.mark.parametrize("status", [b"200 OK", b"503 Service Unavailable"])
def test_answers_in_chunks_leave_the_connection_open(session: ExportSession, status: bytes) -> None:
    def answer_in_chunks(connection: socket.socket) -> None:
        read_export(connection)
        connection.sendall(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 %b\r\ntransfer-encoding: chunked\r\n\r\n"
            b"4\r\ntext\r\n0\r\n\r\n" % status
        )
        answer(connection, status)

    with ScriptedCollector(answer_in_chunks) as collector:
        answers = [post(session, collector.url) for _ in range(2)]

    code = int(status[:3])
    assert [(one.status_code, one.text) for one in answers] == [(code, "text"), (code, "")]
