"""Closes connections that time out, and rejects connections above the limit.

uvicorn closes a connection that is idle after a response. It has no timeout for the first request
or the rest of a head, so a few slow clients could use up a worker's file descriptors.
"""

import asyncio
import contextlib
import fcntl
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Any, Final

import msgspec
from typing_extensions import override

from gateway.errors import GatewayError, RequestTimeout
from gateway.http.draining import Draining
from gateway.http.peers import Peer, too_many_connections, too_many_of
from gateway.http.request_head import Headers
from gateway.http.slow_readers import ReadingPeer, ReadProgress
from gateway.http.strict_protocol import ReadFlow, StrictHttpProtocol
from gateway.http.unsent_answers import UnsentAnswers

HAS_CERTIFICATE: Final = "has_certificate"
"""The key in a request's state that says that the client has shown an accepted certificate."""
_CHECK_INTERVAL = 1.0
# Connections above the limit that get a 503 at a time; more are aborted without a response.
_MAX_REJECTED = 256
# The offset in Linux's `tcp_info` of the number of bytes that the peer has confirmed.
_CONFIRMED_AT, _CONFIRMED_SIZE = 120, 8


class ConnectionTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits the connections of a worker. Times are in seconds."""

    head: float = 10.0
    """The time from the accepted connection, or a request's first byte, to the end of the head."""
    idle: float = 75.0
    """The time between two requests of a connection, or without reading of a response."""
    confirm: float = 2.0
    """The time from the last sent byte to the peer's confirmation that TLS has ended."""
    connections: int = 4096
    """The number of connections open at a time."""


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
        peer: Peer | None = None,
        unsent: UnsentAnswers | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._unsent = unsent or UnsentAnswers(clock=self.loop.time)
        self._progress: ReadProgress | None = None
        self._peer = peer or Peer()
        self._clients = deque[str]()
        """Those of the requests under way, where a proxy names them."""
        self._timeouts = timeouts or ConnectionTimeouts()
        self._rejected = set() if rejected is None else rejected
        self._draining = draining or Draining()
        self._waiting_since = 0.0
        self._is_in_head = False
        self._has_had_request = False
        self._answered_at = 0.0
        self._unsent_bytes = 0
        self._unsent_since = 0.0
        self._ended_since: float | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._peer.is_connected = True
        if self._peer.refusal is not None:
            self._reject(transport, self._peer.refusal)
            return
        if len(self.connections) >= self._timeouts.connections:
            self._reject(transport, too_many_connections())
            return
        self._waiting_since = self.loop.time()
        super().connection_made(transport)
        if self._peer.client:
            self.client = (self._peer.client, 0)
            if transport.get_extra_info("peercert"):
                self.app_state = {**self.app_state, HAS_CERTIFICATE: True}

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._rejected.discard(self)
        self._peer.close()
        while self._clients:
            self._forget_client()
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
        if not self._peer.is_proxy:
            super().on_headers_complete()
            return
        refusal = self._count_client(self.headers)
        if refusal is not None:
            self._stop(refusal)
        self.scope["client"] = (self._clients[-1], 0)
        try:
            super().on_headers_complete()
        except Exception:  # it is refused, and never under way
            self._peer.requests.remove(self._clients.pop())
            raise

    @override
    def on_response_complete(self) -> None:
        self._answered_at = self.loop.time()
        if self._clients:
            self._forget_client()
        super().on_response_complete()

    def abort_if_write_stalled(self, now: float) -> None:
        """Abort the connection if its peer reads none of the response, closing or not.

        Over TLS, also abort it if the peer has the whole response and does not confirm the end.
        """
        unsent = self.transport.get_write_buffer_size()
        if not self.stays_half_open:
            unsent += _unsent_by_socket(self.transport)
            if unsent or not self.transport.is_closing():
                self._ended_since = None
            elif self._ended_since is None:
                self._ended_since = now
            elif now - self._ended_since > self._timeouts.confirm:
                self.transport.abort()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._timeouts.idle:
            self.transport.abort()

    def reader(self, now: float) -> ReadingPeer | None:
        """Return a peer with unread bytes in this process, else `None`.

        Call it about once a second: the rate is measured between the calls.
        """
        unsent = self.transport.get_write_buffer_size()
        if not unsent or self.transport.get_extra_info("socket") is None:
            self._progress = None
            return None
        progress = self.begin_progress(now)
        return progress.observe(now, confirmed_by_peer(self.transport), unsent, self._holder())

    def begin_progress(self, now: float) -> ReadProgress:
        """Begin to measure how fast the peer reads, unless the measurement has begun."""
        if self._progress is None:
            self._progress = ReadProgress(now, confirmed_by_peer(self.transport))
        return self._progress

    def own_unsent_bytes(self) -> int:
        """Return the unsent bytes that no budget counts."""
        return self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Close the connection at once; unsent bytes are lost."""
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

    def _holder(self) -> Hashable:
        """Return the key that holds bytes of the budget for the answer being sent, if any."""
        return None

    def _count_client(self, headers: Headers) -> GatewayError | None:
        """Count a request for its client, because the proxy's connections are not counted.

        If the client has reached its limit, return the refusal and count nothing.
        """
        client, requests = self._peer.client_of(headers), self._peer.requests
        if not requests.add(client):
            return too_many_of(requests.most)
        self._clients.append(client)
        return None

    def _forget_client(self) -> None:
        self._peer.requests.remove(self._clients.popleft())

    def _reject(self, transport: asyncio.Transport, error: GatewayError) -> None:
        self.transport = transport
        self.flow = ReadFlow(transport)
        if len(self._rejected) >= _MAX_REJECTED:
            transport.abort()
            return
        self._rejected.add(self)
        self.refuse(error)


def _has_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes or an end of stream are unread: closing then would send a reset."""
    descriptor = _descriptor(transport)
    if descriptor < 0:
        return False
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def _unsent_by_socket(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the peer has not confirmed.

    A TLS transport hides the unconfirmed bytes of the transport below it.
    """
    descriptor = _descriptor(transport)
    if descriptor < 0:
        return 0
    count: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))[0]
    return count


def confirmed_by_peer(transport: asyncio.Transport) -> int:
    """Return how many bytes the peer has confirmed since the connection began."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return 0
    size = _CONFIRMED_AT + _CONFIRMED_SIZE
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    count: int = struct.unpack_from("Q", information, _CONFIRMED_AT)[0]
    return count


def _descriptor(transport: asyncio.Transport) -> int:
    """Return the socket's descriptor, or -1 if the connection is closed."""
    found = transport.get_extra_info("socket")
    return -1 if found is None else int(found.fileno())


async def enforce_timeouts(
    *groups: Collection[object],
    on_check: Callable[[int], None] = lambda _: None,
    unsent: UnsentAnswers | None = None,
) -> None:
    """Check the connections of all groups and of `unsent` once a second until cancelled.

    `on_check` gets the number of connections in the first group.
    """
    clock = asyncio.get_running_loop().time
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = clock()
            on_check(len(groups[0]))
            for connection in [one for group in groups for one in group]:
                if isinstance(connection, TimedProtocol):
                    connection.abort_if_write_stalled(now)
                    connection.close_if_timed_out(now)
            if unsent is not None:
                unsent.check(now)
