"""How long a connection may wait before it asks for something, and how many there may be.

uvicorn ends a connection that is idle after an answer. It waits for ever for the first request, and
for the rest of a head: a few slow connections would use up a worker's files.
"""

import asyncio
import contextlib
import select
from collections.abc import Iterable
from typing import Any

import msgspec
from typing_extensions import override

from gateway.errors import Overloaded, RequestTimeout
from gateway.http.bounded_protocol import BoundedProtocol, ReadFlow
from gateway.http.draining import Draining

_SWEEP = 1.0
# Connections beyond the bound that are told so at a time; others are closed without a word.
_MAX_TURNED_AWAY = 256


class ConnectionTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the connections of a worker, times in seconds."""

    head: float = 10.0
    """From the opening, or a request's first byte, to the end of its head."""
    idle: float = 75.0
    """Between two requests of a connection; or without a byte of an answer being taken."""
    connections: int = 4096


class TimedProtocol(BoundedProtocol):
    """uvicorn's protocol, which knows how long it has waited for a request.

    `turned_away` are the connections of this worker beyond the bound, while they are told so.
    """

    def __init__(
        self,
        *args: Any,
        patience: ConnectionTimeouts | None = None,
        turned_away: set[object] | None = None,
        draining: Draining | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._patience = patience or ConnectionTimeouts()
        self._turned_away = set() if turned_away is None else turned_away
        self._draining = draining or Draining()
        self._since = 0.0
        self._has_begun = False
        self._is_used = False
        self._answered_at = 0.0
        self._unsent_bytes = 0
        self._unsent_since = 0.0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._patience.connections:
            self._turn_away(transport)
            return
        self._since = self.loop.time()
        super().connection_made(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._turned_away.discard(self)
        super().connection_lost(exc)

    @override
    def on_message_begin(self) -> None:
        self._since = self.loop.time()
        self._has_begun = True
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._has_begun = False
        self._is_used = True
        super().on_headers_complete()

    @override
    def on_response_complete(self) -> None:
        self._answered_at = self.loop.time()
        super().on_response_complete()

    def end_if_unread(self, now: float) -> None:
        """End the connection if its peer takes nothing of what was written, closed or not."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._patience.idle:
            self.transport.abort()

    def end_if_late(self, now: float) -> None:
        """End the connection if it has waited for a request for too long."""
        if self._refusal is not None:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            return
        patience = self._patience
        waited = now - max(self._since, self._answered_at)
        is_expected = self._has_begun or not self._answered_at
        # uvicorn's timer ends idle ones, unless there are bytes that belong to no request.
        if waited > patience.head + (0.0 if is_expected else patience.idle):
            if self._has_begun:
                self.refuse(RequestTimeout("The head of the request did not arrive in time."))
            else:
                self.transport.close()

    def end_if_idle(self, *, is_last_call: bool) -> None:
        """End the connection once nothing that was sent on it is left to answer.

        One on which nothing was sent yet is kept until the last call.
        """
        if self._has_begun or _has_unread(self.transport):
            return
        is_unused = not self._answered_at and not self._is_used
        if is_unused and not is_last_call:
            return
        self.shutdown()

    def _turn_away(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.flow = ReadFlow(transport)
        if len(self._turned_away) >= _MAX_TURNED_AWAY:
            transport.abort()
            return
        self._turned_away.add(self)
        detail = "There are too many connections; use fewer, or try again."
        self.refuse(Overloaded(detail, retry_after=1.0))


def _has_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes (or the peer's end) wait to be read: closing now would reset."""
    descriptor: int = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return False  # it is closed
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


async def end_late_connections(connections: Iterable[object]) -> None:
    """Look once a second for connections that have waited too long, until cancelled."""
    clock = asyncio.get_running_loop().time
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_SWEEP)
            now = clock()
            for connection in list(connections):
                if isinstance(connection, TimedProtocol):
                    connection.end_if_unread(now)
                    connection.end_if_late(now)
