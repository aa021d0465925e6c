"""Sends HTTP/1.1 requests to backends over kept connections, one request at a time on each.

It has no redirects, cookies, compression, proxies or HTTP/2, which no backend uses, and no request
and response objects, which cost more than the call.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from gateway.errors import ConfigurationError
from gateway.sockets.connecting import Connector
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from gateway.upstream.base import Origin, TransportError
from gateway.upstream.protocol import PIECE_BYTES, HttpClientProtocol
from gateway.upstream.tls import ClientTls, explain

# Idle connections are closed before a backend does it: a call sent into a closing one is lost. They
# outlive the pause between two probes of a backend of thousands, which keep one connection each.
KEEPALIVE_EXPIRY = 15.0


class BackendTransport:
    """Implements `Transport` with a pool of connections. Belongs to one event loop.

    Only connecting has a time-out here: callers have deadlines, and bound their calls.
    """

    def __init__(
        self,
        *,
        keepalive: float = KEEPALIVE_EXPIRY,
        tls: ClientTls | None = None,
        tcp_keepalive: TcpKeepalive = DEFAULT_KEEPALIVE,
    ) -> None:
        self._keepalive = keepalive
        self._tcp_keepalive = tcp_keepalive
        self._tls = tls or ClientTls()
        self._connector = Connector()
        self._idle: dict[Origin, list[tuple[float, HttpClientProtocol]]] = {}
        self._busy: set[HttpClientProtocol] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def send(
        self, origin: Origin, head: bytes, body: bytes, *, connect_timeout: float | None = None
    ) -> HttpClientProtocol:
        """See `Transport.send`."""
        connection = self._reusable(origin) or await self._connect(origin, connect_timeout)
        self._lend(origin, connection)
        try:
            await connection.send(head, body)
            await connection.receive_head()
        except BaseException:
            # Also when cancelled: half an exchange is on the connection.
            self._drop(connection)
            raise
        return connection

    def send_nowait(
        self, origin: Origin, head: bytes, body: bytes, on_change: Callable[[], object]
    ) -> HttpClientProtocol | None:
        """See `Transport.send_nowait`."""
        if len(body) > PIECE_BYTES:
            return None
        connection = self._reusable(origin)
        if connection is None:
            return None
        self._lend(origin, connection)
        connection.on_change = on_change
        try:
            connection.send_whole(head, body)
        except BaseException:  # half an exchange may be on the connection
            self._drop(connection)
            raise
        return connection

    async def aclose(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        idle = [connection for idle in self._idle.values() for _, connection in idle]
        self._idle.clear()
        for connection in (*idle, *self._busy):
            connection.abort()
        self._busy.clear()

    def _lend(self, origin: Origin, connection: HttpClientProtocol) -> None:
        """Give a connection to who sends a request and closes its response."""
        self._busy.add(connection)
        connection.on_close = partial(self._take_back, origin)

    def _take_back(self, origin: Origin, connection: HttpClientProtocol) -> None:
        """Take back a connection whose response was read, or given up."""
        if not connection.status:
            self._drop(connection)
            return
        self._busy.discard(connection)
        if not self._is_usable(connection):
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin, []).append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keepalive, self._sweep)

    def _reusable(self, origin: Origin) -> HttpClientProtocol | None:
        idle = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - self._keepalive
        while idle:
            # The one used last: those that are not needed grow old and are closed.
            since, connection = idle.pop()
            if since > oldest and self._is_usable(connection):
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, connect_timeout: float | None) -> HttpClientProtocol:
        scheme, host, port, server_name = origin
        try:
            context = self._tls.context if scheme == "https" else None
            async with asyncio.timeout(connect_timeout):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpClientProtocol(context),
                    sock=await self._connector.connect(host, port, connect_timeout=connect_timeout),
                    ssl=context,
                    server_hostname=server_name if context is not None else None,
                )
            self._tcp_keepalive.apply(transport)
        except TimeoutError as error:
            raise TransportError("no connection in time") from error
        except ssl.SSLError as error:
            raise TransportError(explain(error)) from error
        except ConfigurationError as error:
            raise TransportError(f"no TLS: {error.detail}") from error
        except (OSError, OverflowError, UnicodeError) as error:
            raise TransportError(f"no connection: {type(error).__name__}") from error
        return connection

    def _is_usable(self, connection: HttpClientProtocol) -> bool:
        """Tell whether a connection may be used again: not if certificates were renewed since."""
        context = connection.context
        return connection.is_reusable and (context is None or context is self._tls.context)

    def _drop(self, connection: HttpClientProtocol) -> None:
        """Close a connection on which half an exchange is."""
        self._busy.discard(connection)
        connection.on_change = connection.on_close = None
        connection.abort(discard=True)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keepalive
        for origin, idle in list(self._idle.items()):
            while idle and idle[0][0] <= oldest:
                idle.pop(0)[1].abort()
            if not idle:
                del self._idle[origin]
        self._sweeper = loop.call_later(self._keepalive, self._sweep) if self._idle else None
