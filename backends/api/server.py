"""Serves calls on a listening socket, and closes it so that no accepted call is lost."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from backends.api.calls import CallHandler
from backends.api.repeated_heads import RepeatedHeads
from backends.api.routes import Routes
from backends.api.tls import ServerTls
from backends.errors import StartProblem
from wire.http.connection import Connection, Front, ServerState
from wire.http.messages import STATUS_LINE
from wire.http.refusals import FramingTooLarge, Refusal
from wire.http.server import BACKLOG, HttpServer
from wire.http.timeouts import ConnectionTimeouts
from wire.http.writing import WriteCoalescer

_TIMEOUTS: Final = ConnectionTimeouts(
    first=120.0,
    body=60.0,
    # Longer than any client keeps a connection, so that it is never the server that closes first.
    idle=120.0,
    unread=60.0,
    connections=sys.maxsize,
)
_GRACE: Final = 1.0
"""Seconds in which requests that are no calls may end at the stop."""
_REFUSALS: Final = {
    408: ("too_slow", "the head of the request did not arrive in time"),
    431: ("headers_too_large", "a head or a trailer has no end"),
}


class BackendServer:
    """Serves the routes of a backend. A caller that half-closes its connection has left."""

    answers_half_closed = False

    def __init__(
        self,
        application: Routes,
        tls: ServerTls | None = None,
        timeouts: ConnectionTimeouts = _TIMEOUTS,
    ) -> None:
        self.coalescer = WriteCoalescer()
        self.state = ServerState(application, self, timeouts)
        self.has_started = False
        self._calls: CallHandler = application.calls
        self._server = HttpServer(self.state, edge=tls, has_date=False)
        self._stopping = asyncio.Event()
        self._waits_at_stop = True

    def front(self, connection: Connection) -> Front:
        """Return what recognizes repeated heads of a connection."""
        return RepeatedHeads(self._calls, connection)

    def refusal(self, refusal: Refusal, default_lines: bytes) -> bytes:
        """Return the answer that refuses a request."""
        status = 431 if isinstance(refusal, FramingTooLarge) else refusal.status
        code, detail = _REFUSALS.get(status, ("bad_call", refusal.detail))
        body = json.dumps({"code": code, "detail": detail}).encode()
        return (
            b"%b%bcontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n"
            b"\r\n%b" % (STATUS_LINE[status], default_lines, len(body), body)
        )

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `stop`, then end the connections."""
        await self._server.listen(listener)
        self.has_started = True
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._server.watch())
            await self._stopping.wait()
            self.stop_accepting(listener)
            if self._waits_at_stop:
                await self._server.shut_down(_GRACE)
            watching.cancel()

    def stop(self, *, at_once: bool = False) -> None:
        """Have `serve` end; it waits for nothing if it should end `at_once`."""
        self._waits_at_stop = not at_once
        self._stopping.set()

    def make_answers_last(self) -> None:
        """Have every answer from now on be the last one of its connection."""
        self.state.close_connections()

    def stop_accepting(self, listener: socket.socket) -> None:
        """Accept nothing any more."""
        self._server.stop_accepting(listener)

    async def end_idle_connections(self) -> None:
        """End connections that are idle or become so within a second."""
        await self._server.end_idle_connections()


@contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """Listen; connections wait until the models are loaded.

    Raises:
        StartProblem: the address cannot be bound; the message says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # A listening socket is what makes another bind with SO_REUSEADDR fail.
            listener.listen(BACKLOG)
        except OSError as error:
            raise StartProblem(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what is there or choose "
                "another port with --port"
            ) from None
        listener.setblocking(False)
        yield listener
