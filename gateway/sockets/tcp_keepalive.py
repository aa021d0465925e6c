"""Sets TCP options that close connections whose peer is unreachable."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from typing import Final

import msgspec

# On, for 0 seconds.
_DISCARD = struct.pack("ii", 1, 0)
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": "idle", "TCP_KEEPINTVL": "interval", "TCP_KEEPCNT": "count"}


class TcpKeepalive(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds how long probes or data may stay unacknowledged before a connection is closed.

    Without these options a connection whose packets are dropped lasts 15 minutes with data in
    flight, and for ever without.
    """

    idle: int = 5
    """Seconds without a packet after which the peer is probed."""
    interval: int = 2
    """Seconds between two probes."""
    count: int = 3
    """Unanswered probes; where the system supports `user_timeout`, that decides."""
    user_timeout: float = 10.0
    """Seconds that sent data, or probes, may stay unacknowledged."""

    def options(self) -> Mapping[int, int]:
        """Return the values by option of the level TCP, for options that the system has."""
        values = {
            getattr(socket, option): getattr(self, field)
            for option, field in _KEEPALIVE_OPTIONS.items()
            if hasattr(socket, option)
        }
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            values[socket.TCP_USER_TIMEOUT] = int(self.user_timeout * 1000)
        return values

    def apply(self, transport: asyncio.BaseTransport) -> None:
        """Set the options on the connection of `transport`, if it is a TCP connection."""
        _set_option(transport, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in self.options().items():
            _set_option(transport, socket.IPPROTO_TCP, option, value)


def discard_at_close(transport: asyncio.BaseTransport) -> None:
    """Make closing the connection discard unacknowledged data and send a reset (`SO_LINGER` 0).

    Otherwise the kernel keeps sending it, and the peer may run, much later, a command whose caller
    is gone.
    """
    _set_option(transport, socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)


def _set_option(
    transport: asyncio.BaseTransport, level: int, option: int, value: int | bytes
) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        # It may be closed already, which uvloop says with a `ValueError`.
        with contextlib.suppress(OSError, ValueError):
            connection.setsockopt(level, option, value)


DEFAULT_KEEPALIVE: Final = TcpKeepalive()
"""The values of connections for which none are configured."""
