"""Speaks HTTP/1.1 on one connection to a backend, with the parser of the server, `httptools`."""

import asyncio
import ssl
from collections.abc import Callable

import httptools
from typing_extensions import override

from sluicegate.gateway.sockets.tcp_keepalive import discard_at_close
from sluicegate.gateway.upstream.base import (
    Origin,
    TransportError,
    explain_early_loss,
    wait_for_change,
)
from sluicegate.gateway.upstream.tls import ClientTls, explain

# Larger bodies are sent in pieces, so that none of them holds the loop for long.
PIECE_BYTES = 256 * 1024
_MOST_BUFFERED = 256 * 1024
_MOST_HEADERS = 64 * 1024
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_FIRST_FINAL_STATUS = 200


class HttpClientProtocol(asyncio.Protocol):
    """A connection to `origin`, made with `context` if over TLS, and the request in progress on it.

    Implements `Response` until its user closes the response. `on_close` then takes it back.
    """

    def __init__(
        self,
        origin: Origin,
        context: ssl.SSLContext | None,
        on_close: "Callable[[HttpClientProtocol], object]",
    ) -> None:
        self.origin = origin
        self._context = context
        self._on_close = on_close
        self._parser = httptools.HttpResponseParser(self)
        self._header_bytes = 0
        self._is_framed = self._has_heard = False
        self._chunks: list[bytes] = []
        self._buffered = 0
        self.status = 0
        """Of the response in progress, once its head is here."""
        self.is_complete = self._is_sent = True
        self._keeps_alive = True
        self._is_paused = self._is_blocked = False
        self.error: TransportError | None = None
        """Why the connection is of no use any more."""
        self.on_change: Callable[[], object] | None = None

    def is_reusable(self, tls: ClientTls) -> bool:
        """Return whether another request may be sent: not if certificates were renewed since."""
        return (
            self._is_sent
            and self.is_complete
            and self._keeps_alive
            and not self._chunks
            and self.error is None
            and (self._context is None or self._context is tls.context)
        )

    async def send(self, head: bytes, body: bytes) -> None:
        """Send a request, or as much of it as is taken before the response begins."""
        if len(body) <= PIECE_BYTES:
            self.send_whole(head, body)
        else:
            await self._send_pieces(head, body)
        while not self.status:
            await wait_for_change(self)

    async def _send_pieces(self, head: bytes, body: bytes) -> None:
        self.send_whole(head, b"", length=len(body))
        self._is_sent = False
        for at in range(0, len(body), PIECE_BYTES):
            self._transport.write(body[at : at + PIECE_BYTES])
            while self._is_blocked and not self.status:
                await wait_for_change(self)
            if self.status:  # it was refused, and nobody reads the rest
                return
        self._is_sent = True

    def send_whole(self, head: bytes, body: bytes, *, length: int | None = None) -> None:
        """Send a request whose body is not too large for one write; `length` is its length."""
        self._header_bytes = self.status = 0
        self.is_complete = False
        length = len(body) if length is None else length
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, length, body))

    def take(self) -> bytes:
        """Return what has arrived of the body since the last time."""
        whole = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return whole

    def close(self) -> None:
        """Read no more of the response, and give the connection back."""
        self.on_change = None
        self._on_close(self)

    def abort(self, *, discard: bool = False) -> None:
        """Close at once; `discard` what did not arrive yet."""
        if discard:
            discard_at_close(self._transport)
        self.error = self.error or TransportError("the connection was given up")
        self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        if self.is_complete:
            self._fail(TransportError("bytes came that no request asked for"))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(TransportError(f"no HTTP came: {type(error).__name__}"))
        self._note_change()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self.status and not self._is_framed:
            # A body without a length ends with its connection, unless that was reset.
            self.is_complete = True
        if self.error is None:
            self.error = TransportError(self._why_lost(exc))
        self._note_change()

    def _why_lost(self, exc: Exception | None) -> str:
        if isinstance(exc, ssl.SSLError):
            return explain(exc)
        if self._has_heard:
            return "the connection was lost"
        return explain_early_loss(is_tls=self._context is not None)

    @override
    def pause_writing(self) -> None:
        self._is_blocked = True

    @override
    def resume_writing(self) -> None:
        self._is_blocked = False
        self._note_change()

    def on_message_begin(self) -> None:
        """Notice a second answer to one request: what follows could be mistaken for another's."""
        if self.is_complete:
            self.error = TransportError("bytes came that no request asked for")
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
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if status >= _FIRST_FINAL_STATUS:
            self.status = status
            self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body until it is read."""
        if self.is_complete:
            return
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > _MOST_BUFFERED and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """End the exchange."""
        if self.status:
            self.is_complete = True

    def _fail(self, error: TransportError) -> None:
        self.error = self.error or error
        self._transport.abort()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()
