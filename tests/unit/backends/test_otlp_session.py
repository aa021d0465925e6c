"""Exports over plain HTTP: over one connection, and otherwise as `requests` sends them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
from typing_extensions import override

from backends.otlp_session import ExportSession
from loadtests.harness.ports import free_port

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
        headers = {name.lower(): value for name, value in self.headers.items()}
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

    answer = post(session, collector.url)

    assert (answer.status_code, answer.reason) == (503, "Service Unavailable")
    assert answer.headers["Retry-After"] == "7"
    assert answer.text == "text"


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
    answer = session.post(collector.url, data={"a": "b"})

    assert answer.status_code == 200
    assert collector.received[0][1] == b"a=b"
