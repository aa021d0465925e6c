"""Connections that ask for nothing, or never finish asking, end; those that wait for us do not."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sluicegate.gateway.http.server import open_listener, serve
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from testing.raw_http import Connection
from testing.waiting import eventually

pytestmark = pytest.mark.anyio
_GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"
_PATIENCE = ConnectionTimeouts(head=0.3, idle=1.0, connections=3)
_MORE_THAN_SOCKETS_HOLD = 32 * 1024 * 1024


async def app(scope: Any, _receive: Any, send: Any) -> None:
    """Answer `/slow` late and `/large` at length, everything else at once."""
    if scope["path"] == "/slow":
        await _pass(2.5)
    body = bytes(_MORE_THAN_SOCKETS_HOLD) if scope["path"] == "/large" else b"ok"
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port(anyio_backend: str) -> AsyncIterator[int]:
    listener = open_listener("127.0.0.1", 0, None, setting="the port")
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(app, listener, drain=1.0, stop=stop, timeouts=_PATIENCE))
    listener.listen()
    yield listener.getsockname()[1]
    stop.set()
    await serving


async def test_a_connection_that_says_nothing_is_closed(port: int) -> None:
    async with Connection(port) as connection:
        assert await connection.is_closed()


async def test_a_head_that_never_ends_is_answered_408_however_it_trickles(port: int) -> None:
    async with Connection(port) as connection:
        await connection.send(_GET)
        first = await connection.response()
        await connection.send(b"GET / HTTP/1.1\r\nx: ")
        trickling = asyncio.create_task(_trickle(connection))
        late = await connection.response()
        trickling.cancel()

        assert (first.status, late.status, late.json()["code"]) == (200, 408, "request_timeout")
        assert await connection.is_closed()


async def test_an_idle_connection_is_closed_after_its_time(port: int) -> None:
    async with Connection(port) as connection:
        await connection.send(_GET)
        await connection.response()
        started = time.monotonic()

        assert await connection.is_closed()
        assert time.monotonic() - started >= 0.9


async def test_empty_lines_do_not_keep_a_connection_open(port: int) -> None:
    async with Connection(port) as connection:
        await connection.send(_GET)
        await connection.response()
        await connection.send(b"\r\n")

        assert await connection.is_closed()


async def test_a_caller_who_waits_for_an_answer_is_left_alone(port: int) -> None:
    async with Connection(port) as connection:
        await connection.send(_GET.replace(b"/", b"/slow", 1))

        assert (await connection.response()).status == 200


async def test_more_connections_than_allowed_are_told_to_come_back(port: int) -> None:
    async with Connection(port) as one, Connection(port) as two, Connection(port) as three:
        for connection in (one, two, three):
            await connection.send(_GET)
            assert (await connection.response()).status == 200
        async with Connection(port) as fourth:
            refused = await fourth.response()
            closed = await fourth.is_closed()

    assert (refused.status, refused.json()["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert closed


@pytest.mark.parametrize("times", [1, 3])
async def test_callers_who_do_not_read_take_nobodys_place_for_long(port: int, times: int) -> None:
    async def is_served() -> bool:
        async with Connection(port) as another:
            await another.send(_GET)
            return (await another.response()).status == 200

    large = _GET.replace(b"/", b"/large", 1)
    async with AsyncExitStack() as stack:
        for _ in range(_PATIENCE.connections):
            connection = await stack.enter_async_context(Connection(port))
            await connection.send(large * times)
            assert (await connection.head())[0] == 200
        await eventually(is_served, every=0.1)


async def _trickle(connection: Connection) -> None:
    while True:
        await connection.send(b"y")
        await _pass(0.05)


async def _pass(seconds: float) -> None:
    """Be as slow as that: what these tests are about."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)
