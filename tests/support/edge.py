"""Serves a small application on a listener with an edge, and calls it in every way."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from sluicegate.gateway.http.edge import ListenerEdge
from sluicegate.gateway.http.server import open_listener, serve
from sluicegate.wire.http.timeouts import ConnectionTimeouts

GET = b"GET / HTTP/1.1\r\nhost: h\r\n%b\r\n"


class Reply(NamedTuple):
    """An answer: its head, in lower case, and its body."""

    head: str
    body: str

    @property
    def status(self) -> int:
        return int(self.head.split()[1])


class Caller:
    """A connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def ask(self, fields: bytes = b"") -> Reply:
        """Send a request and return the answer."""
        self.writer.write(GET % fields)
        return await self.answer()

    async def answer(self) -> Reply:
        """Return the next answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split()[0])
        return Reply(head, (await self._reader.readexactly(length)).decode())

    async def ends(self) -> bool:
        """Wait for the end of the connection, and return whether nothing came before."""
        try:
            return await self._reader.read() == b""
        except ConnectionResetError:
            return True


class Served:
    """A listener on `port`; requests are answered with their client and scheme.

    Those that say `x-wait` wait for `resumed`.
    """

    def __init__(self, port: int, edge: ListenerEdge) -> None:
        self.port = port
        self.edge = edge
        self.resumed = asyncio.Event()

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        """Answer a request."""
        if b"x-wait" in dict(scope["headers"]):
            await self.resumed.wait()
        body = f"{scope['scheme']} {scope['client'][0]}".encode()
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    @contextlib.asynccontextmanager
    async def connect(
        self, tls: ssl.SSLContext | None = None, *, prefix: bytes = b""
    ) -> AsyncIterator[Caller]:
        """Connect, send `prefix`, and then begin TLS, if it is given."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(prefix)
            if tls is not None:
                await writer.start_tls(tls, server_hostname="127.0.0.1")
            yield Caller(reader, writer)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def served(
    edge: ListenerEdge, *, timeouts: ConnectionTimeouts | None = None, app: Any = None
) -> AsyncIterator[Served]:
    """Serve on a free port of loopback."""
    listener = open_listener("127.0.0.1", 0, None, setting="the port")
    running = Served(listener.getsockname()[1], edge)
    stop = asyncio.Event()
    serving = asyncio.create_task(
        serve(app or running, listener, drain=1.0, stop=stop, timeouts=timeouts, edge=edge)
    )
    listener.listen()
    try:
        yield running
    finally:
        running.resumed.set()
        stop.set()
        await serving
