"""Bounds what a connection may send before a request is known, and how long it may take.

uvicorn reads heads without end, and waits for ever for a first request, for the rest of a head and
for the rest of a body.
"""

import asyncio
import json
from typing import Any

import msgspec
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 100
# Received bytes are parsed in chunks of this size, so that bounds are checked often enough.
_CHUNK = 4 * 1024
_BODY_CHUNK = 64 * 1024


class ConnectionTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds how long a connection may take, in seconds."""

    head: float = 10.0
    """From a request's first byte to the end of its head."""
    body: float = 60.0
    """From there to the end of its body."""
    idle: float = 120.0
    """From the opening to a first request; between two it is uvicorn's to end them."""
    unread: float = 60.0
    """Seconds for which a caller may read nothing while bytes wait for it."""


class _TooLarge(Exception):
    """Stops the parser in the midst of a head."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """Bounds heads, chunk extensions, trailers and time of uvicorn's protocol."""

    def __init__(self, *args: Any, waits: ConnectionTimeouts | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waits = waits or ConnectionTimeouts()
        self._since = 0.0
        self._is_in_head = False
        self._is_in_body = False
        self._is_too_large = False
        self._events = 0
        self._head_bytes = 0
        """Bytes of the present head, or of what frames a body, at least."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._since = self.loop.time()
        super().connection_made(transport)

    @override
    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.transport.is_closing():
            events = self._events
            size = _BODY_CHUNK if self._is_in_body else _CHUNK
            super().data_received(rest[:size])  # type: ignore[arg-type]  # the parser takes it
            if self._events != events:
                self._head_bytes = 0
            else:
                self._head_bytes += len(rest[:size])
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._refuse(431, "headers_too_large", "a head or a trailer has no end")
            rest = rest[size:]

    @override
    def on_message_begin(self) -> None:
        self._since = self.loop.time()
        self._is_in_head = True
        self._events += 1
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            return  # trailers are no header fields
        if len(self.headers) == MAX_FIELDS:
            self._is_too_large = True
            raise _TooLarge
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._since = self.loop.time()
        self._is_in_head, self._is_in_body = False, True
        self._events += 1
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._events += 1
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._events += 1
        super().on_message_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        if self._is_too_large:
            self._refuse(431, "headers_too_large", f"the request has over {MAX_FIELDS} headers")
        else:
            self._refuse(400, "bad_call", "this is no HTTP/1.1")

    def end_if_late(self, now: float) -> None:
        """End the connection if it has exceeded a timeout."""
        waited = now - self._since
        if self._is_in_head and waited > self._waits.head:
            self._refuse(408, "too_slow", "the head of the request did not arrive in time")
        elif self._is_in_body and waited > self._waits.body:
            self.transport.abort()
        elif not self._events and waited > self._waits.idle:
            self.transport.close()

    def _refuse(self, status: int, code: str, detail: str) -> None:
        body = json.dumps({"code": code, "detail": detail}).encode()
        self.transport.write(
            b"%bcontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (STATUS_LINE[status], len(body), body)
        )
        self.transport.close()
