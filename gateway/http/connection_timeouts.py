"""Closes connections that time out, and rejects connections above the limit.

uvicorn closes a connection that is idle after a response. It has no timeout for the first request
or the rest of a head, so a few slow clients could use up a worker's file descriptors.
"""

import asyncio
import contextlib
import select
from collections.abc import Iterable
from typing import Any

import msgspec
from typing_extensions import override

from gateway.errors import Overloaded, RequestTimeout
from gateway.http.draining import Draining
from gateway.http.strict_protocol import ReadFlow, StrictHttpProtocol

_CHECK_INTERVAL = 1.0
# Connections above the limit that get a 503 at a time; more are aborted without a response.
_MAX_REJECTED = 256


class ConnectionTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds the connections of a worker; times are in seconds."""

    head: float = 10.0
    """From accepting the connection, or a request's first byte, to the end of its head."""
    idle: float = 75.0
    """Between two requests of a connection, or while the peer reads none of a response."""
    connections: int = 4096
    """Connections open at a time."""


class TimedProtocol(StrictHttpProtocol):
    """Extends the protocol with timeouts for heads, idle connections and stalled writes.

    `rejected` holds the worker's connections above the limit until each has got its 503.
    """

    def __init__(
        self,
        *args: Any,
        timeouts: ConnectionTimeouts | None = None,
        rejected: set[object] | None = None,
        draining: Draining | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._timeouts = timeouts or ConnectionTimeouts()
        self._rejected = set() if rejected is None else rejected
        self._draining = draining or Draining()
        self._waiting_since = 0.0
        self._is_in_head = False
        self._has_had_request = False
        self._answered_at = 0.0
        self._unsent_bytes = 0
        self._unsent_since = 0.0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._timeouts.connections:
            self._reject(transport)
            return
        self._waiting_since = self.loop.time()
        super().connection_made(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._rejected.discard(self)
        super().connection_lost(exc)

    @override
    def on_message_begin(self) -> None:
        self._waiting_since = self.loop.time()
        self._is_in_head = True
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._has_had_request = True
        super().on_headers_complete()

    @override
    def on_response_complete(self) -> None:
        self._answered_at = self.loop.time()
        super().on_response_complete()

    def abort_if_write_stalled(self, now: float) -> None:
        """Abort the connection if its peer reads none of the response, closing or not."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._timeouts.idle:
            self.transport.abort()

    def close_if_timed_out(self, now: float) -> None:
        """Close the connection if the wait for a request exceeded its timeout."""
        if self._refusal is not None:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            return
        timeouts = self._timeouts
        waited = now - max(self._waiting_since, self._answered_at)
        is_expected = self._is_in_head or not self._answered_at
        # uvicorn's timer closes idle connections, but not those with bytes of no request.
        if waited > timeouts.head + (0.0 if is_expected else timeouts.idle):
            if self._is_in_head:
                self.refuse(RequestTimeout("The head of the request did not arrive in time."))
            else:
                self.transport.close()

    def close_if_idle(self, *, is_last_call: bool) -> None:
        """Close the connection once every request on it is answered.

        A connection without any request yet is kept until `is_last_call`.
        """
        if self._is_in_head or _has_unread(self.transport):
            return
        is_unused = not self._answered_at and not self._has_had_request
        if is_unused and not is_last_call:
            return
        self.shutdown()

    def _reject(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.flow = ReadFlow(transport)
        if len(self._rejected) >= _MAX_REJECTED:
            transport.abort()
            return
        self._rejected.add(self)
        detail = "There are too many connections; use fewer, or try again."
        self.refuse(Overloaded(detail, retry_after=1.0))


def _has_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes or an end of stream are unread: closing then would send a reset."""
    descriptor: int = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return False  # it is closed
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


async def enforce_timeouts(connections: Iterable[object]) -> None:
    """Check all connections once a second until cancelled."""
    clock = asyncio.get_running_loop().time
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = clock()
            for connection in list(connections):
                if isinstance(connection, TimedProtocol):
                    connection.abort_if_write_stalled(now)
                    connection.close_if_timed_out(now)
