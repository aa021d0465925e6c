"""Serves the same bytes to every request, as a baseline: the HTTP server of gateway and backends.

Start it by `python -m loadtests.bare_server PORT LENGTH STATUS DELAY`. It sends `LENGTH` bytes with
the status `STATUS`, `DELAY` seconds after each request.
"""

import asyncio
import socket
import sys
from typing import Any

import uvloop

from wire.http.connection import Connection, ServerState
from wire.http.messages import STATUS_LINE
from wire.http.refusals import Refusal
from wire.http.server import HttpServer
from wire.http.timeouts import ConnectionTimeouts
from wire.http.writing import WriteCoalescer


class _Side:
    """Has nothing beside the application."""

    answers_half_closed = True

    def __init__(self) -> None:
        self.coalescer = WriteCoalescer()

    def front(self, connection: Connection) -> None:
        """Return nothing."""

    def refusal(self, refusal: Refusal, default_lines: bytes) -> bytes:
        return STATUS_LINE[refusal.status] + default_lines + b"content-length: 0\r\n\r\n"


async def _serve(port: int, length: int, status: int, delay: float) -> None:
    body = b"x" * length
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if delay:
            await asyncio.sleep(delay)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    server = HttpServer(ServerState(app, _Side(), ConnectionTimeouts()))
    with socket.create_server(("127.0.0.1", port)) as listener:
        await server.listen(listener)
        await server.watch()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
