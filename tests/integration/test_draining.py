"""A server that is told to stop loses nothing: not what it has, not what comes meanwhile."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.http.server import open_listener, serve
from testing.raw_http import Connection
from testing.waiting import eventually, until

pytestmark = pytest.mark.anyio
_GET = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n"
_SLOW = b"GET /slow HTTP/1.1\r\nhost: h\r\n\r\n"


class Server:
    """A server that answers `/slow` when the gate opens and everything else at once."""

    def __init__(self, draining: Draining) -> None:
        self.draining = draining
        self.port = 0
        self.stop = asyncio.Event()
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        """Answer."""
        if scope["path"] == "/slow":
            self.asked.set()
            await self.gate.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def is_refusing(self) -> bool:
        """Return whether a new connection is refused."""
        try:
            async with Connection(self.port):
                return False
        except ConnectionRefusedError:
            return True


@asynccontextmanager
async def running(draining: Draining, *siblings: socket.socket) -> AsyncIterator[Server]:
    """Run a server until the end of the context."""
    server = Server(draining)
    with open_listener("127.0.0.1", 0, None, setting="the port") as listener:
        server.port = listener.getsockname()[1]
        options = {"drain": 60.0, "stop": server.stop, "draining": draining, "siblings": siblings}
        serving = asyncio.create_task(serve(server, listener, **options))  # type: ignore[arg-type]
        serving.add_done_callback(lambda _: server.ended.set())
        listener.listen()
        yield server
        server.gate.set()
        server.stop.set()
        await serving


async def test_after_the_announcement_everything_is_served_and_answers_end_connections() -> None:
    async with running(Draining(is_supervised=True)) as server:
        async with Connection(server.port) as connection:
            await connection.send(_GET)
            before = await connection.response()
            server.draining.announce()
            await connection.send(_GET)
            after = await connection.response()

            assert "connection" not in before.headers
            assert after.headers["connection"] == "close"
            assert await connection.is_closed()
        async with Connection(server.port) as another:
            await another.send(_GET)

            assert (await another.response()).status == 200


async def test_of_pipelined_requests_the_last_answer_ends_the_connection() -> None:
    async with running(Draining(is_supervised=True)) as server, Connection(server.port) as client:
        server.draining.announce()
        await client.send(_SLOW + _GET + _GET)
        await server.asked.wait()
        server.gate.set()

        answers = [await client.response() for _ in range(3)]

        assert [answer.headers.get("connection") for answer in answers] == [None, None, "close"]
        assert await client.is_closed()


async def test_who_waits_to_be_accepted_when_it_stops_is_answered() -> None:
    async with running(Draining()) as server:
        async with Connection(server.port) as first:
            await first.send(_GET)
            await first.response()  # it serves
        callers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        for caller in callers:
            caller.sendall(_GET)  # nothing of this was accepted: the loop did not run
        server.stop.set()

        answers = [await asyncio.to_thread(caller.recv, 1000) for caller in callers]

        assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers)
        for caller in callers:
            caller.close()
        await server.ended.wait()
        assert await server.is_refusing()


async def test_a_request_in_flight_is_answered_after_the_end_of_accepting() -> None:
    async with running(Draining()) as server, Connection(server.port) as connection:
        await connection.send(_SLOW)
        await server.asked.wait()
        server.stop.set()
        await eventually(server.is_refusing, within=30)
        server.gate.set()

        answer = await connection.response()

        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert await connection.is_closed()


async def test_an_idle_connection_ends_with_the_server() -> None:
    async with running(Draining()) as server, Connection(server.port) as connection:
        await connection.send(_GET)
        await connection.response()
        server.stop.set()

        assert await connection.is_closed()


async def test_alone_it_says_that_it_leaves_before_it_does() -> None:
    async with running(Draining(delay=0.2)) as server:
        server.stop.set()
        await until(lambda: server.draining.is_announced)

        await server.ended.wait()

        assert await server.is_refusing()


async def test_replaced_beside_others_it_leaves_what_comes_to_them_and_serves_what_it_has() -> None:
    draining = Draining(delay=60.0, is_supervised=True)
    with socket.create_server(("127.0.0.1", 0)) as sibling:
        async with running(draining, sibling) as server, Connection(server.port) as connection:
            await connection.send(_GET)
            await connection.response()
            server.stop.set()
            await until(lambda: draining.closes_connections)
            assert await server.is_refusing()  # nobody else has the socket here
            await connection.send(_GET)

            answer = await connection.response()

            assert answer.headers["connection"] == "close"
            assert not draining.is_announced
            await server.ended.wait()


async def test_what_waits_at_another_workers_socket_is_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sibling:
        sibling.setblocking(False)
        async with (
            running(Draining(), sibling),
            Connection(sibling.getsockname()[1]) as connection,
        ):
            await connection.send(_GET)

            assert (await connection.response()).status == 200
