"""Sends HTTP/1.1 requests to backends over kept connections, one request at a time on each.

It has no redirects, cookies, compression, proxies or HTTP/2, which no backend uses, and no request
and response objects, which cost more than the call. The parser is the server's, `httptools`.
"""

import asyncio
import ssl
from collections import deque

import httptools
from typing_extensions import override

from gateway.errors import ConfigurationError
from gateway.sockets.connecting import Connector
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive, discard_at_close
from gateway.upstream.base import Origin, TransportError, explain_early_loss
from gateway.upstream.tls import ClientTls, explain

# Idle connections are closed before a backend does it: a call sent into a closing one is lost.
KEEPALIVE_EXPIRY = 4.0
# Larger bodies are sent in pieces, so that none of them holds the loop for long.
PIECE_BYTES = 256 * 1024
_MOST_BUFFERED = 256 * 1024
_MOST_HEADERS = 64 * 1024
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_FIRST_FINAL_STATUS = 200


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
        self._idle: dict[Origin, list[tuple[float, _Connection]]] = {}
        self._busy: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def send(
        self, origin: Origin, head: bytes, body: bytes, *, connect_timeout: float | None = None
    ) -> "Response":
        """See `Transport.send`."""
        connection = self._reusable(origin) or await self._connect(origin, connect_timeout)
        self._busy.add(connection)
        try:
            await connection.send(head, body)
            status = await connection.status()
        except BaseException:
            # Also when cancelled: half an exchange is on the connection.
            self._drop(connection)
            raise
        return Response(self, origin, connection, status)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        idle = [connection for idle in self._idle.values() for _, connection in idle]
        self._idle.clear()
        for connection in (*idle, *self._busy):
            connection.abort()
        self._busy.clear()

    def finished(self, origin: Origin, connection: "_Connection") -> None:
        """Take back a connection whose response was read, or given up."""
        self._busy.discard(connection)
        if not self._is_usable(connection):
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin, []).append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keepalive, self._sweep)

    def _reusable(self, origin: Origin) -> "_Connection | None":
        idle = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - self._keepalive
        while idle:
            # The one used last: those that are not needed grow old and are closed.
            since, connection = idle.pop()
            if since > oldest and self._is_usable(connection):
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, connect_timeout: float | None) -> "_Connection":
        scheme, host, port, server_name = origin
        try:
            context = self._tls.context if scheme == "https" else None
            async with asyncio.timeout(connect_timeout):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(context),
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

    def _is_usable(self, connection: "_Connection") -> bool:
        """Tell whether a connection may be used again: not if certificates were renewed since."""
        context = connection.context
        return connection.is_reusable and (context is None or context is self._tls.context)

    def _drop(self, connection: "_Connection") -> None:
        self._busy.discard(connection)
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


class Response:
    """Implements `TransportResponse` over a connection of the pool."""

    def __init__(
        self, transport: BackendTransport, origin: Origin, connection: "_Connection", status: int
    ) -> None:
        self.status = status
        self._transport = transport
        self._origin = origin
        self._connection = connection
        self._closed = False

    async def read(self) -> bytes:
        """See `TransportResponse.read`."""
        return await self._connection.read()

    def close(self) -> None:
        """Read no more."""
        if not self._closed:
            self._closed = True
            self._transport.finished(self._origin, self._connection)


class _Connection(asyncio.Protocol):
    """A connection, made with `context` if over TLS, and the request in progress on it."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._header_bytes = 0
        self._is_framed = self._has_heard = False
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._has_head = self._is_complete = self._is_sent = True
        self._keeps_alive = True
        self._is_paused = self._is_blocked = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent."""
        whole = self._is_sent and self._is_complete and not self._chunks
        return whole and self._keeps_alive and self._error is None

    async def send(self, head: bytes, body: bytes) -> None:
        """Send a request, or as much of it as is taken before the response begins."""
        self._header_bytes = 0
        self._has_head = self._is_complete = self._is_sent = False
        start = b"%bcontent-length: %d\r\n\r\n" % (head, len(body))
        if len(body) <= PIECE_BYTES:
            self._transport.write(start + body)
            self._is_sent = True
            return
        self._transport.write(start)
        for at in range(0, len(body), PIECE_BYTES):
            self._transport.write(body[at : at + PIECE_BYTES])
            while self._is_blocked and not self._has_head:
                await self._wait()
            if self._has_head:  # it was refused, and nobody reads the rest
                return
        self._is_sent = True

    async def status(self) -> int:
        """Return the status of the response."""
        while not self._has_head:
            await self._wait()
        return self._parser.get_status_code()

    async def read(self) -> bytes:
        """Return what has arrived of the body, nothing at its end."""
        while not self._chunks:
            if self._is_complete:
                return b""
            await self._wait()
        whole = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return whole

    def abort(self, *, discard: bool = False) -> None:
        """Close at once; `discard` what did not arrive yet."""
        if discard:
            discard_at_close(self._transport)
        self._error = self._error or TransportError("the connection was given up")
        self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        if self._is_complete:
            self._fail(TransportError("bytes came that no request asked for"))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(TransportError(f"no HTTP came: {type(error).__name__}"))
        self._wake()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._has_head and not self._is_framed:
            # A body without a length ends with its connection, unless that was reset.
            self._is_complete = True
        if self._error is None:
            self._error = TransportError(self._why_lost(exc))
        self._wake()

    def _why_lost(self, exc: Exception | None) -> str:
        if isinstance(exc, ssl.SSLError):
            return explain(exc)
        if self._has_heard:
            return "the connection was lost"
        return explain_early_loss(is_tls=self.context is not None)

    @override
    def pause_writing(self) -> None:
        self._is_blocked = True

    @override
    def resume_writing(self) -> None:
        self._is_blocked = False
        self._wake()

    def on_message_begin(self) -> None:
        """Notice a second answer to one request: what follows could be mistaken for another's."""
        if self._is_complete:
            self._error = TransportError("bytes came that no request asked for")
        self._is_framed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Notice how the body is framed; refuse headers, interim ones and trailers without end."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MOST_HEADERS:
            raise TransportError("the headers do not end")
        if name.lower() in _FRAMING:
            self._is_framed = True

    def on_headers_complete(self) -> None:
        """Let the response begin, unless it says that it comes later."""
        if self._is_complete:
            return
        if self._parser.get_status_code() >= _FIRST_FINAL_STATUS:
            self._has_head = True
            self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body until it is read."""
        if self._is_complete:
            return
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > _MOST_BUFFERED and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """End the exchange."""
        if self._has_head:
            self._is_complete = True

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
