"""Reads HTTP/1.1 within bounds, answers what cannot be read with a problem, and closes gently.

uvicorn's protocol reads heads without end, takes what follows an upgrade that it does not offer for
no HTTP, answers malformed requests as text, and leaves callers who have closed their half.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import httptools
import msgspec
from typing_extensions import override
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import GatewayError, InternalError, InvalidRequest, VersionNotSupported
from gateway.http.request_head import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    check_head,
    check_size,
    decoded_path,
    too_large,
)

_log = logging.getLogger(__name__)
# What is read is parsed in pieces, so that the bounds are looked at often enough.
_PIECE = 4 * 1024
_PIECE_OF_BODY = 16 * 1024
# With so many requests that wait for the answers to those before them no more is parsed: each takes
# a hundred times the memory of its bytes. More is parsed when half of them are answered.
_MAX_PIPELINED = 16
# Of chunk extensions, trailers and lengths of chunks; and so much more for each byte of a body,
# since chunks may be as small as that.
_MAX_FRAMING = 16 * 1024
_FRAMING_OF_A_BYTE = 16
# Of a body that nobody waits for any more, since its request is answered.
_MAX_UNWANTED = 16 * 1024 * 1024
# For so long the peer may still send, and read the answer: closing at once would reset the
# connection, and the answer would be lost with it.
_LINGER = 1.0
_FRAMING = (b"content-length", b"transfer-encoding")


class _Refused(Exception):
    """Stops the parser; what for is known to the protocol."""


class ReadFlow(FlowControl):
    """Reads no more while a part of what was read is not parsed, whoever asks for more."""

    is_held = False

    @override
    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class _AfterUpgrade:
    """Hands a parser's events to a protocol, but for those of the head that it is fed first."""

    def __init__(self, protocol: "BoundedProtocol") -> None:
        self._protocol = protocol
        self.is_silent = True

    def on_message_begin(self) -> None:
        """Pass it on."""
        if not self.is_silent:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.is_silent:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_silent:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.is_silent:
            self._protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        self.is_silent = False
        self._protocol.on_message_complete()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on heads and framing; `new_id` names what it refuses."""

    flow: ReadFlow

    def __init__(
        self,
        *args: Any,
        new_id: Callable[[], str] = lambda: f"req_{secrets.token_hex(13)}",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._new_id = new_id
        self._refusal: GatewayError | None = None
        self._is_lingering = False
        self._is_at_eof = False
        self._is_in_body = False
        self._ignores_upgrade = False
        self._unanswered = 0
        self._events = 0
        self._discarded = 0
        self._reads_much = False
        """Whether a piece of a body was read, behind which any number of heads may be."""
        self._overhead = 0
        """Bytes of the present head, or of the framing of the present body: a lower bound."""
        self._unparsed = b""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = ReadFlow(transport)

    @override
    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self.transport.is_closing():
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        is_short = len(data) <= _PIECE and not self._unparsed
        if is_short and len(self.pipeline) < _MAX_PIPELINED:
            self._read(data)
        else:
            self._unparsed += data
            self._read_on()

    @override
    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's may say to stay open
        """Answer what the caller asked for in full before it closed its half, then close."""
        if self._is_lingering:
            self.transport.close()
            return True
        self._is_at_eof = True
        if not self._unparsed:
            self._end_at_eof()
        return True

    @override
    def on_message_begin(self) -> None:
        self._events += 1
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            return  # trailers: RFC 9110 forbids to take them for header fields
        if len(self.headers) == MAX_FIELDS:
            self._stop(too_large())
        # The parser leaves the blanks after a value (RFC 9112, 5.1).
        value = value.rstrip(b" \t")
        # As uvicorn does, without a call for each field.
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    @override
    def on_headers_complete(self) -> None:
        try:
            check_head(self.parser.get_http_version(), self.url, self.headers)
            if self._reads_much or self._overhead + 2 * _PIECE > MAX_HEAD_BYTES:
                check_size(self.url, self.headers)
        except GatewayError as error:
            self._stop(error)
        self._events += 1
        self._is_in_body = True
        self._ignores_upgrade = self.parser.should_upgrade()
        self._unanswered += 1
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self._unanswered -= 1
            self._stop(InvalidRequest("The target of the request is no URL."))
        if b"%" in self.url:
            self.scope["path"] = self.root_path + decoded_path(self.scope["raw_path"].decode())

    @override
    def on_message_complete(self) -> None:
        if self._ignores_upgrade:
            return  # to the parser the rest is another protocol's; it is the body
        self._events += 1
        self._is_in_body = False
        super().on_message_complete()

    @override
    def on_response_complete(self) -> None:
        self._unanswered -= 1
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._unparsed and len(self.pipeline) <= _MAX_PIPELINED // 2:
            self._read_on()
        if not self._unanswered:
            if self._refusal is not None:
                self._end_refused(self._refusal)
            elif self._is_at_eof:
                self.transport.close()

    def refuse(self, error: GatewayError) -> None:
        """Read no more, and end the connection with `error` once all before it is answered."""
        self._refusal = error
        self._give_up_body()
        if self._unanswered:
            self.flow.pause_reading()
        else:
            self._end_refused(error)

    def _read_on(self) -> None:
        """Parse what was read, as long as few requests wait for the answers to others."""
        left = memoryview(self._unparsed)
        while left and self._refusal is None and len(self.pipeline) < _MAX_PIPELINED:
            size = _PIECE_OF_BODY if self._is_in_body else _PIECE
            self._read(left[:size])
            left = left[size:]
        self._unparsed = b"" if self._refusal is not None else bytes(left)
        self.flow.is_held = bool(self._unparsed)
        if self._unparsed:
            self.flow.pause_reading()
        elif self._is_at_eof:
            self._end_at_eof()

    def _end_at_eof(self) -> None:
        """Close the connection, whose caller has closed its half, once all is answered."""
        self._give_up_body()
        if self._unanswered:
            self.cycle.keep_alive = False
        elif self._refusal is None:
            self.transport.close()

    def _read(self, data: bytes | memoryview) -> None:
        events = self._events
        self._reads_much = self._reads_much or len(data) > _PIECE
        body = len(self.cycle.body) if self._is_in_body else 0
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self.refuse(self._refusal or _error_of(error, self.parser.get_method()))
            return
        if self._events != events:
            self._overhead = 0
        elif self._is_in_body:
            self._count_body(len(data), len(self.cycle.body) - body)
        else:
            self._overhead += len(data)
            if self._overhead > MAX_HEAD_BYTES:
                self.refuse(too_large())

    def _count_body(self, size: int, kept: int) -> None:
        """Count what was read of a body, and how much of it was data that the application has."""
        if self.cycle.response_complete:
            self._overhead += size
            if self._overhead > _MAX_UNWANTED:
                self.transport.abort()
        elif self.cycle.more_body:
            self._overhead = max(0, self._overhead + size - kept * (1 + _FRAMING_OF_A_BYTE))
            if self._overhead > _MAX_FRAMING:
                self.refuse(InvalidRequest("The body's chunks have too much beside their data."))

    def _parse(self, data: bytes | memoryview) -> None:
        """Feed the parser; an upgrade is ignored, as RFC 9110 allows, and what follows is HTTP."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._ignores_upgrade = False
                framing = [b"%b: %b\r\n" % h for h in self.headers if h[0] in _FRAMING]
                self.parser = httptools.HttpRequestParser(_AfterUpgrade(self))
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
            else:
                return

    def _stop(self, error: GatewayError) -> None:
        """Have the parser stop, from within one of its events."""
        self._refusal = error
        raise _Refused

    def _give_up_body(self) -> None:
        """Let go of the request whose body will not be read to its end, if there is one."""
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        elif cycle.response_started:
            self.transport.close()
        cycle.more_body = False
        cycle.disconnected = True
        cycle.message_event.set()
        self._unanswered -= 1

    def _end_refused(self, error: GatewayError) -> None:
        self.transport.write(_response(error, self._new_id(), self.server_state.default_headers))
        self.linger()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > _MAX_UNWANTED:
            self.transport.pause_reading()

    def linger(self) -> None:
        """Write no more, and close when the peer has closed, or after a while."""
        self._is_lingering = True
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER, self.transport.close)


def _error_of(error: httptools.HttpParserError, method: bytes) -> GatewayError:
    """Return what a request is refused with that the parser cannot read."""
    if isinstance(error, httptools.HttpParserCallbackError):
        _log.error("unexpected failure", exc_info=error)
        return InternalError("This is our fault.")
    if method == b"PRI":
        return VersionNotSupported("HTTP/2 is not spoken here; use HTTP/1.1.")
    return InvalidRequest(f"This is no HTTP/1.1: {error}.")


def _response(error: GatewayError, request_id: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return the whole answer that says `error`, the last one of its connection."""
    body = msgspec.json.encode(
        {
            "type": f"urn:sluicegate:error:{error.code}",
            "title": error.title,
            "status": error.status,
            "code": error.code,
            "detail": error.detail,
            "request_id": request_id,
        }
    )
    lines = [*headers, (b"content-type", b"application/problem+json")]
    lines += [(b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
    if error.retry_after is not None:
        lines.append((b"retry-after", b"%d" % error.retry_after))
        lines.append((b"retry-after-ms", b"%d" % (error.retry_after * 1000)))
    return b"%b%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        STATUS_LINE[error.status],
        b"".join([b"%b: %b\r\n" % line for line in lines]),
        len(body),
        body,
    )
