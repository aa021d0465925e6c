"""Limits how long connections may take, and measures what their peers confirm to have received."""

import asyncio
import fcntl
import math
import select
import socket
import struct
import termios
from typing import Final

import msgspec

# The offset in Linux's `tcp_info` of the number of bytes that the peer has confirmed.
_CONFIRMED_AT: Final = 120
_CONFIRMED_SIZE: Final = 8


class ConnectionTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits the connections of a listener. Times are in seconds."""

    head: float = 10.0
    """The time from a request's first byte to the end of its head."""
    first: float | None = None
    """The time from the accepted connection to its first request. The default is `head`."""
    body: float = math.inf
    """The time from the end of a head to the end of its body."""
    idle: float = 75.0
    """The time between two requests of a connection."""
    unread: float | None = None
    """The time in which a peer reads nothing of an answer. The default is `idle`."""
    confirm: float = 2.0
    """The time from the last sent byte to the peer's confirmation that TLS has ended."""
    connections: int = 4096
    """The number of connections open at a time."""

    @property
    def until_first(self) -> float:
        """The time until the first byte of a first request."""
        return self.head if self.first is None else self.first


class StallWatch:
    """Notices a peer that reads none of an answer, or does not confirm the end of TLS."""

    def __init__(self, transport: asyncio.Transport, timeouts: ConnectionTimeouts) -> None:
        self._transport = transport
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._unread = timeouts.idle if timeouts.unread is None else timeouts.unread
        self._confirm = timeouts.confirm
        self._unsent_bytes = 0
        self._unsent_since = 0.0
        self._ended_since: float | None = None

    def has_stalled(self, now: float, unsent_bytes: int) -> bool:
        """Return whether to abort the connection, closing or not."""
        if self._is_tls:
            unsent_bytes += _unconfirmed_bytes(self._transport)
            if unsent_bytes or not self._transport.is_closing():
                self._ended_since = None
            elif self._ended_since is None:
                self._ended_since = now
            elif now - self._ended_since > self._confirm:
                return True
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent_bytes, now
            return False
        return bool(unsent_bytes) and now - self._unsent_since > self._unread


def has_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes or an end of stream are unread: closing then would send a reset."""
    descriptor = _descriptor(transport)
    if descriptor < 0:
        return False
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def confirmed_by_peer(transport: asyncio.Transport) -> int:
    """Return how many bytes the peer has confirmed since the connection began."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return 0
    size = _CONFIRMED_AT + _CONFIRMED_SIZE
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    count: int = struct.unpack_from("Q", information, _CONFIRMED_AT)[0]
    return count


def _unconfirmed_bytes(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the peer has not confirmed.

    A TLS transport hides the unconfirmed bytes of the transport below it.
    """
    descriptor = _descriptor(transport)
    if descriptor < 0:
        return 0
    count: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))[0]
    return count


def _descriptor(transport: asyncio.Transport) -> int:
    """Return the socket's descriptor, or -1 if the connection is closed."""
    found = transport.get_extra_info("socket")
    return -1 if found is None else int(found.fileno())
