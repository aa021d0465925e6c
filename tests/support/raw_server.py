"""Serves given bytes and reads the responses that a transport makes of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sluicegate.gateway.upstream.base import Transport, locate
from sluicegate.gateway.upstream.exchange import read_body

Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Serves each connection by a given function."""

    def __init__(self, behave: Streams) -> None:
        self._behave = behave
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RawServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


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
