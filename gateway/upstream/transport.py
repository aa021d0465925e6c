"""Sends HTTP/1.1 requests to backends over kept connections, one request at a time on each.

It has no redirects, cookies, compression, proxies or HTTP/2, which no backend uses, and no request
and response objects, which cost more than the call.
"""

import asyncio
import ssl

from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.sockets.connecting import Connector
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from sluicegate.gateway.upstream.base import ConnectTimeout, Origin, TransportError
from sluicegate.gateway.upstream.protocol import PIECE_BYTES, HttpClientProtocol
from sluicegate.gateway.upstream.tls import ClientTls, explain

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
        self._busy.add(connection)
        try:
            await connection.send(head, body)
        except BaseException:
            # Also when cancelled: half an exchange is on the connection.
            self._drop(connection)
            raise
        return connection

    def send_nowait(self, origin: Origin, head: bytes, body: bytes) -> HttpClientProtocol | None:
        """See `Transport.send_nowait`."""
        connection = self._reusable(origin) if len(body) <= PIECE_BYTES else None
        if connection is None:
            return None
        self._busy.add(connection)
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

    def _take_back(self, connection: HttpClientProtocol) -> None:
        """Take back a connection whose response was read, or given up."""
        if connection not in self._busy:
            return
        if not connection.status:
            self._drop(connection)
            return
        self._busy.discard(connection)
        if not connection.is_reusable(self._tls):
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(connection.origin, []).append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keepalive, self._sweep)

    def _reusable(self, origin: Origin) -> HttpClientProtocol | None:
        idle = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - self._keepalive
        while idle:
            # The one used last: those that are not needed grow old and are closed.
            since, connection = idle.pop()
            if since > oldest and connection.is_reusable(self._tls):
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, connect_timeout: float | None) -> HttpClientProtocol:
        scheme, host, port, server_name = origin
        try:
            context = self._tls.context if scheme == "https" else None
            async with asyncio.timeout(connect_timeout):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpClientProtocol(origin, context, self._take_back),
                    sock=await self._connector.connect(host, port, connect_timeout=connect_timeout),
                    ssl=context,
                    server_hostname=server_name if context is not None else None,
                )
            self._tcp_keepalive.apply(transport)
        except TimeoutError as error:
            raise ConnectTimeout("no connection in time") from error
        except ssl.SSLError as error:
            raise TransportError(explain(error)) from error
        except ConfigurationError as error:
            raise TransportError(f"no TLS: {error.detail}") from error
        except (OSError, OverflowError, UnicodeError) as error:
            raise TransportError(f"no connection: {type(error).__name__}") from error
        return connection

    def _drop(self, connection: HttpClientProtocol) -> None:
        """Close a connection on which half an exchange is."""
        self._busy.discard(connection)
        connection.on_change = None
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
