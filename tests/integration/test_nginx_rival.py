"""Tests nginx with Lua before a model server: answers are kept, refusals and errors are not."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from typing_extensions import override

from loadtests.rivals import nginx

pytestmark = pytest.mark.skipif(not nginx.is_installed(), reason="nginx with Lua is not installed")
HEADERS = {"authorization": f"Bearer {nginx.KEY}", "content-type": "application/json"}


class _ModelServer(ThreadingHTTPServer):
    """Answers with how often it was asked; `bad` fails."""

    asked = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _ModelServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked += 1
        answer = b"%b %b %d" % (self.path.encode(), body, self.server.asked)
        self.send_response(500 if body == b"bad" else 200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(name="client", scope="module")
def _client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("rival") / "nginx"
    with _ModelServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        upstream = f"127.0.0.1:{server.server_port}"
        with (
            nginx.nginx("proxy", folder, upstream=upstream) as (port, _),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=HEADERS) as client,
        ):
            yield client
        server.shutdown()


def test_an_answer_is_asked_for_once(client: httpx.Client) -> None:
    """The server gets the path and the body as they came; another body is asked for anew."""
    answers = [client.post("/v2/infer", content=body).text for body in ("a", "a", "b", "a")]

    assert answers == ["/v2/infer a 1", "/v2/infer a 1", "/v2/infer b 2", "/v2/infer a 1"]


def test_errors_are_passed_on_and_not_kept(client: httpx.Client) -> None:
    """The server is asked each time."""
    first, second = (client.post("/predict", content="bad") for _ in range(2))

    assert (first.status_code, second.status_code) == (500, 500)
    assert first.text != second.text


def test_a_caller_without_the_key_is_refused(client: httpx.Client) -> None:
    """Also for what is kept."""
    assert client.post("/v2/infer", content="a", headers={"authorization": ""}).status_code == 401
