"""Serves given bytes and reads the responses that a transport makes of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from sluicegate.gateway.upstream.base import Transport, locate
from sluicegate.gateway.upstream.exchange import read_body
from testing.servers import close_server

Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Serves each connection by a given function, until that returns or the server ends."""

    def __init__(self, behave: Streams) -> None:
        self._behave = behave
        self._serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self.connections = 0
        self.url = ""
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RawServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            await close_server(server)
            await self._end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        self._serving[task] = writer
        try:
            await self._behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _end(self) -> None:
        """Close all connections. `Server.wait_closed` of Python 3.11 waits for none of them."""
        for task, writer in self._serving.items():
            task.cancel()
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
            await asyncio.wait([task])


def replying_with(*answers: bytes) -> Streams:
    """Answer the requests of a connection with these bytes in turn, then close it."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(answer)
            await writer.drain()

    return behave


# No response of these tests is longer.
_MOST_BYTES = 1024 * 1024
HEAD = b"POST / HTTP/1.1\r\nhost: b\r\n"


async def ask(transport: Transport, url: str, body: bytes = b"x") -> tuple[int, bytes]:
    response = await transport.send(locate(url).origin, HEAD, body)
    try:
        return response.status, await read_body(response, _MOST_BYTES)
    finally:
        response.close()
