"""HTTP/1.1 to backends, behind `httpx`'s interface of transports: kept connections and no more.

Redirects, cookies, compression, proxies and HTTP/2 are left out, since no backend uses them: a
call costs a fifth of one through a general client. The parser is the server's, `httptools`.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator

import httptools
import httpx
from typing_extensions import override

# Idle connections are closed before a backend does it: a call sent into a closing one is lost.
KEEPALIVE_EXPIRY = 4.0
_MOST_BUFFERED = 256 * 1024
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_Origin = tuple[str, str, int]


class BackendTransport(httpx.AsyncBaseTransport):
    """A pool without a limit; whoever calls bounds the calls. Belongs to one event loop.

    Of `httpx`'s time-outs only `connect` is kept here: callers have deadlines of their own.
    """

    def __init__(
        self, *, keepalive: float = KEEPALIVE_EXPIRY, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._keepalive = keepalive
        self._ssl_context = ssl_context
        self._idle: dict[_Origin, list[tuple[float, _Connection]]] = {}
        self._busy: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request`, and return its response once the head is here.

        Raises:
            httpx.TransportError: there is no connection, it was lost, or no HTTP came over it.
        """
        origin = _origin(request.url)
        connection = self._kept(origin) or await self._connect(origin, request)
        self._busy.add(connection)
        try:
            await connection.send(request)
            status, headers = await connection.head()
        except BaseException:
            # Also when cancelled: half an exchange is on the connection.
            self._drop(connection)
            raise
        return httpx.Response(status, headers=headers, stream=_Body(self, origin, connection))

    @override
    async def aclose(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        idle = [connection for kept in self._idle.values() for _, connection in kept]
        self._idle.clear()
        for connection in (*idle, *self._busy):
            connection.abort()
        self._busy.clear()

    def finished(self, origin: _Origin, connection: "_Connection") -> None:
        """Take back a connection whose response was read, or given up."""
        self._busy.discard(connection)
        if not connection.is_reusable:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin, []).append((loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keepalive, self._sweep)

    def _kept(self, origin: _Origin) -> "_Connection | None":
        kept = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - self._keepalive
        while kept:
            # The one used last: those that are not needed grow old and are closed.
            since, connection = kept.pop()
            if since > oldest and connection.is_reusable:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: _Origin, request: httpx.Request) -> "_Connection":
        scheme, host, port = origin
        loop = asyncio.get_running_loop()
        context = self._context() if scheme == "https" else None
        patience = request.extensions.get("timeout", {}).get("connect")
        try:
            async with asyncio.timeout(patience):
                _, connection = await loop.create_connection(_Connection, host, port, ssl=context)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except (OSError, OverflowError, UnicodeError) as error:
            raise httpx.ConnectError(f"no connection: {type(error).__name__}") from error
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context

    def _drop(self, connection: "_Connection") -> None:
        self._busy.discard(connection)
        connection.abort()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keepalive
        for origin, kept in list(self._idle.items()):
            for since, connection in kept:
                if since <= oldest:
                    connection.abort()
            left = [(since, connection) for since, connection in kept if since > oldest]
            if left:
                self._idle[origin] = left
            else:
                del self._idle[origin]
        self._sweeper = loop.call_later(self._keepalive, self._sweep) if self._idle else None


class _Body(httpx.AsyncByteStream):
    """A response's body as it arrives; closing it gives the connection back."""

    def __init__(
        self, transport: BackendTransport, origin: _Origin, connection: "_Connection"
    ) -> None:
        self._transport = transport
        self._origin = origin
        self._connection = connection
        self._closed = False

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._connection.read():
            yield chunk

    @override
    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._transport.finished(self._origin, self._connection)


class _Connection(asyncio.Protocol):
    """One connection, and the exchange that is on it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
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

    async def send(self, request: httpx.Request) -> None:
        """Send a request, or as much of it as is read before the response begins."""
        self._headers = []
        self._has_head = self._is_complete = self._is_sent = False
        head = [b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)]
        head += [b"%b: %b\r\n" % header for header in request.headers.raw]
        head.append(b"\r\n")
        if isinstance(request.stream, httpx.ByteStream):
            head += request.stream
            self._transport.write(b"".join(head))
            self._is_sent = True
            return
        self._transport.write(b"".join(head))
        if not isinstance(request.stream, httpx.AsyncByteStream):
            raise TypeError(request.stream)
        async for piece in request.stream:
            self._transport.write(piece)
            while self._is_blocked and not self._has_head:
                await self._wait()
            if self._has_head:  # it was refused, and nobody reads the rest
                return
        self._is_sent = True

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return the status and the headers of the response."""
        while not self._has_head:
            await self._wait()
        return self._parser.get_status_code(), self._headers

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

    def abort(self) -> None:
        """Close at once."""
        self._error = self._error or httpx.ReadError("the connection was given up")
        self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_complete:
            self._fail(httpx.RemoteProtocolError("more came than was asked for"))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx.RemoteProtocolError(f"no HTTP came: {type(error).__name__}"))
        self._wake()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_head and not any(name.lower() in _FRAMING for name, _ in self._headers):
            # A body without a length ends with its connection.
            self._is_complete = True
        if self._error is None:
            self._error = httpx.ReadError("the connection was lost")
        self._wake()

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
            self._error = httpx.RemoteProtocolError("more came than was asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Let the response begin, unless it says that it comes later."""
        if self._is_complete:
            return
        if self._parser.get_status_code() >= httpx.codes.OK:
            self._has_head = True
            self._keeps_alive = self._parser.should_keep_alive()
        else:
            self._headers = []

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


def _origin(url: httpx.URL) -> _Origin:
    if url.scheme not in {"http", "https"} or not url.host:
        raise httpx.UnsupportedProtocol("a backend's URL begins with `http://` or `https://`")
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)
