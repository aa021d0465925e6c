"""A server that runs models and sends what no such server should costs a call, and no lane."""

import socket
import threading
from collections.abc import Iterator

import pytest

from sluicegate.backends.errors import UpstreamUnavailable
from sluicegate.backends.open_inference.address import RemoteModelServer
from sluicegate.backends.open_inference.client import Reply, UpstreamClient
from sluicegate.backends.open_inference.tensors import decode

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


class Wire:
    """A server that answers each request with the same bytes, `pause` seconds apart."""

    def __init__(self) -> None:
        self.answer = _HEAD + b"ok"
        self.pause = 0.0
        # What is sent once more when the test says so, to nobody's question.
        self.unasked = b""
        self.may_go_on = threading.Event()
        self.has_gone_on = threading.Event()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(accepted,), daemon=True).start()

    def _answer(self, accepted: socket.socket) -> None:
        ended = threading.Event()
        with accepted:
            try:
                while accepted.recv(65_536):
                    if not self.pause:
                        accepted.sendall(self.answer)
                        if self.unasked and self.may_go_on.wait(5.0):
                            accepted.sendall(self.unasked)
                            self.has_gone_on.set()
                        continue
                    for byte in self.answer:
                        accepted.sendall(bytes([byte]))
                        ended.wait(self.pause)
            except OSError:
                return


@pytest.fixture
def wire() -> Iterator[Wire]:
    server = Wire()
    yield server
    server.close()


def client_of(wire: Wire) -> UpstreamClient:
    return UpstreamClient(RemoteModelServer(url=wire.url, model="remote"))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200 + b"\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2" + b" " * 200 + b"\r\nok\r\n",
    ],
)
def test_a_response_that_drips_is_given_up_in_time(wire: Wire, answer: bytes) -> None:
    client = client_of(wire)
    wire.answer, wire.pause = answer, 0.05
    with pytest.raises(UpstreamUnavailable, match="TimeoutError"):
        client.infer(b"", {}, timeout=0.3)
    client.close()


def test_what_nobody_asked_for_is_no_answer_to_the_next_call(wire: Wire) -> None:
    client = client_of(wire)
    wire.unasked = _HEAD + b"no"
    client.infer(b"", {}, timeout=5.0)
    wire.may_go_on.set()
    assert wire.has_gone_on.wait(5.0)

    assert client.infer(b"", {}, timeout=5.0).body == b"ok"
    client.close()


def test_a_number_of_too_many_digits_is_none(wire: Wire) -> None:
    client = client_of(wire)
    wire.answer = b"HTTP/1.1 503 Busy\r\nRetry-After: %b\r\nContent-Length: 0\r\n\r\n" % (
        b"9" * 5_000
    )

    assert client.infer(b"", {}, timeout=5.0).retry_after is None
    client.close()


@pytest.mark.parametrize("data", ["1" + "0" * 400 + ", 2", "[" * 5_000 + "]" * 5_000 + ", 2"])
def test_values_that_no_float_holds_are_no_answer(data: str) -> None:
    body = f'{{"outputs":[{{"name":"o","datatype":"FP32","shape":[1,2],"data":[{data}]}}]}}'

    with pytest.raises(UpstreamUnavailable):
        decode(Reply(status=200, body=body.encode()), "o", (1, 2))


def test_a_whole_response_is_read_whatever_its_framing(wire: Wire) -> None:
    client = client_of(wire)
    wire.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"

    answers = {client.infer(b"", {}, timeout=5.0).body for _ in range(3)}
    client.close()

    assert answers == {b"ok"}
    assert wire.connections == 1
