"""Connections to a backend that never end a head, or send too much of one, do not stay."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sluicegate.backends.api.calls import CallHandler
from sluicegate.backends.api.server import BackendServer, bind
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from sluicegate.wire.protocol import STATE_PATH
from testing.model_repository import DIMENSIONS, write_repository
from testing.raw_http import Connection
from testing.waiting import until
from tests.support.backend_calls import running_backend
from tests.support.executors import PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
_STATE = f"GET {STATE_PATH} HTTP/1.1\r\nhost: b\r\n\r\n".encode()
_CALL = b"POST /v1/call HTTP/1.1\r\nhost: b\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The loop of the product, one for the module."""
    return "asyncio", {"loop_factory": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as listening:
        yield listening


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: object, listener: socket.socket
) -> AsyncIterator[BackendServer]:
    folder: Path = tmp_path_factory.mktemp("models")
    executor = PacedExecutor(Gate(), dimensions=DIMENSIONS)
    async with running_backend(write_repository(folder / "models"), executor) as backend:
        timeouts = ConnectionTimeouts(head=0.5, first=0.5, body=0.5, idle=120.0, unread=0.5)
        server = BackendServer(backend.routes, timeouts=timeouts)
        serving = asyncio.create_task(server.serve(listener))
        await until(lambda: server.has_started)
        yield server
        server.stop()
        await serving


@pytest.fixture(scope="module")
def port(server: BackendServer, listener: socket.socket) -> int:
    number: int = listener.getsockname()[1]
    return number


async def test_a_head_without_end_is_refused_at_64_kib(port: int) -> None:
    for sent in (
        _CALL + b"x: " + b"a" * 80_000,
        b"\r\n" * 40_000,
        _CALL + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 200_000,
        _CALL + b"transfer-encoding: chunked\r\n\r\n3;x=" + b"a" * 200_000,
        _CALL + b"x: y\r\n" * 120,
        _CALL + b"".join(b"x%d: %b\r\n" % (n, b"y" * 1000) for n in range(90)) + b"\r\n",
    ):
        async with Connection(port) as connection:
            await connection.send(sent)
            status, _ = await connection.head()
            assert status == 431


async def test_a_caller_that_reads_nothing_is_given_up(server: BackendServer, port: int) -> None:
    async with Connection(port) as connection:
        # More answers than sockets hold; the backend stops reading before it has all of it.
        sending = asyncio.create_task(connection.send(_STATE * 50_000))

        await until(lambda: len(server.state.connections) == 1)
        await until(lambda: not server.state.connections)
        sending.cancel()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await sending


@pytest.mark.parametrize("sent", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_what_is_no_http_is_said_to_be_none(port: int, sent: bytes) -> None:
    async with Connection(port) as connection:
        await connection.send(sent)
        response = await connection.response()

        assert (response.status, response.json()["code"]) == (400, "bad_call")
        assert await connection.is_closed()


async def test_a_length_with_many_zeros_before_it_is_a_length(port: int) -> None:
    async with Connection(port) as connection:
        await connection.send(_CALL + b"content-length: %b9\r\n\r\nno call: " % (b"0" * 5000))

        assert (await connection.head())[0] == 400


async def test_a_head_that_does_not_end_is_ended(port: int) -> None:
    async with Connection(port) as connection:
        await connection.send(_STATE)
        first = await connection.response()
        await connection.send(_STATE[:-4])
        late = await connection.response()

        assert (first.status, late.status) == (200, 408)
        assert await connection.is_closed()


@pytest.mark.parametrize("sent", [b"", _CALL + b"content-length: 9\r\n\r\nabc"])
async def test_a_connection_that_asks_for_nothing_or_half_is_closed(port: int, sent: bytes) -> None:
    async with Connection(port) as connection:
        await connection.send(sent)

        try:
            assert await connection.is_closed()
        except ConnectionResetError:
            assert sent


async def test_one_that_has_asked_and_may_ask_again_stays(port: int) -> None:
    async with Connection(port) as connection:
        for _ in range(3):
            await connection.send(_STATE)
            assert (await connection.response()).status == 200
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.6)


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_a_repeated_head_is_answered_as_the_first_one(port: int, pieces: int) -> None:
    async with Connection(port) as connection:
        for body in (b"no call", b"no call", b"n" * 3000, b"", b"no call"):
            request = _CALL + b"content-length: %d\r\n\r\n%b" % (len(body), body)
            size = len(request) // pieces + 1
            for start in range(0, len(request), size):
                await connection.send(request[start : start + size])
            await connection.send(b"")
            response = await connection.response()
            assert (response.status, b"bad_call" in response.body) == (400, True)


async def test_a_head_that_others_repeat_need_not_be_the_first(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[bytes]()
    begin = CallHandler.begin

    def record(self: CallHandler, body: bytes, *rest: Any) -> Any:
        begun.append(body)
        return begin(self, body, *rest)

    monkeypatch.setattr(CallHandler, "begin", record)
    async with Connection(port) as connection:
        for head in (_CALL, _CALL + b"x-other: 1\r\n", _CALL + b"x-other: 1\r\n"):
            await connection.send(head + b"content-length: 7\r\n\r\nno call")
            assert (await connection.response()).status == 400

    assert begun == [b"no call"]


async def test_requests_with_a_repeated_head_that_come_together_are_all_answered(
    port: int,
) -> None:
    request = _CALL + b"content-length: 7\r\n\r\nno call"
    async with Connection(port) as connection:
        await connection.send(request)
        assert (await connection.response()).status == 400
        await connection.send(request * 3 + _STATE)

        statuses = [(await connection.response()).status for _ in range(4)]

    assert statuses == [400, 400, 400, 200]


@pytest.mark.parametrize("length", [b"8", b"0x7", b"-7", b"", b"9" * 30])
async def test_a_repeated_head_with_another_length_is_read_by_it(port: int, length: bytes) -> None:
    async with Connection(port) as connection:
        await connection.send(_CALL + b"content-length: 7\r\n\r\nno call")
        assert (await connection.response()).status == 400
        await connection.send(_CALL + b"content-length: %b\r\n\r\nno call" % length)

        with contextlib.suppress(ConnectionResetError):
            if length != b"8":
                assert (await connection.response()).status in (400, 413)
            assert await connection.is_closed()
