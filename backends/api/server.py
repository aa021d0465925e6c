"""Serves calls on a listening socket, and closes it so that no accepted call is lost."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sluicegate.backends.api.calls import CallHandler
from sluicegate.backends.api.repeated_heads import RepeatedHeads
from sluicegate.backends.api.routes import JSON_LINE, Routes
from sluicegate.backends.api.tls import ServerTls
from sluicegate.backends.errors import StartProblem
from sluicegate.wire.http.accepting import BACKLOG
from sluicegate.wire.http.connection import Connection, Front, ServerState
from sluicegate.wire.http.messages import answer_head
from sluicegate.wire.http.refusals import FramingTooLarge, Refusal
from sluicegate.wire.http.server import HttpServer
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from sluicegate.wire.http.writing import WriteCoalescer
from sluicegate.wire.listening import open_socket

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
        self.http = HttpServer(self.state, edge=tls, has_date=False)
        self.has_started = False
        self._calls: CallHandler = application.calls
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
        return answer_head(status, JSON_LINE, len(body), default_lines, is_last=True) + body

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `stop`, then end the connections."""
        await self.http.listen(listener)
        self.has_started = True
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.http.watch())
            await self._stopping.wait()
            self.http.stop_accepting(listener)
            if self._waits_at_stop:
                await self.http.shut_down(_GRACE)
            watching.cancel()

    def stop(self, *, at_once: bool = False) -> None:
        """Have `serve` end; it waits for nothing if it should end `at_once`."""
        self._waits_at_stop = not at_once
        self._stopping.set()


@contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """Listen; connections wait until the models are loaded.

    Raises:
        StartProblem: the address cannot be bound; the message says what to do.
    """
    try:
        # A listening socket is what makes another bind with SO_REUSEADDR fail.
        listener = open_socket(host, port, backlog=BACKLOG)
    except OSError as error:
        raise StartProblem(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what is there or choose "
            "another port with --port"
        ) from None
    with listener:
        listener.setblocking(False)
        yield listener
