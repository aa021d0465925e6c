"""Bounds request heads and framing, and answers malformed requests with a problem document.

uvicorn's protocol has no bound on the size of a head, stops parsing after an upgrade that it does
not support, answers malformed requests as text, and drops clients that half-close the connection.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import httptools
from typing_extensions import override

from gateway.errors import GatewayError, InvalidRequest
from gateway.http.parser_events import UpgradeBodyReader, parser_error
from gateway.http.problem_details import encode_refusal
from gateway.http.request_head import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    check_head,
    check_size,
    decode_path,
    header_fields_too_large,
)
from gateway.http.server_internals import FlowControl, HttpToolsProtocol

_log = logging.getLogger(__name__)
# Input is parsed in chunks, so that the bounds are checked often enough.
_CHUNK_BYTES = 4 * 1024
_BODY_CHUNK_BYTES = 16 * 1024
# Parsing pauses at this many pipelined requests, since each takes a hundred times the memory of its
# bytes. It resumes when half of them are answered.
_MAX_PIPELINED = 16
# The bound on chunk extensions, trailers and chunk lengths; and the allowance for each byte of a
# body, since chunks may be as small as one byte.
_MAX_FRAMING_BYTES = 16 * 1024
_FRAMING_PER_BYTE = 16
# The bound on the rest of a body whose request is already answered: most clients read no answer
# before they have sent all of it, and a reset would take it from them.
_MAX_DISCARDED_BYTES = 64 * 1024 * 1024
# Seconds between the end of the response and the close: closing at once while the peer still sends
# would reset the connection, and the peer would lose the response.
_LINGER_TIMEOUT = 1.0
_FRAMING_FIELDS = (b"content-length", b"transfer-encoding")


class _ParsingStopped(Exception):
    """Stops the parser from within a callback; the protocol's `_refusal` says why."""


class ReadFlow(FlowControl):
    """Keeps reading paused while received bytes wait to be parsed."""

    is_held = False

    @override
    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class StrictHttpProtocol(HttpToolsProtocol):
    """Extends uvicorn's protocol with bounds on heads and framing.

    `new_id` makes the id of each request that it refuses.
    """

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
        self._discarded_bytes = 0
        self._has_large_chunk = False
        """Whether a chunk of body size was parsed, behind which any number of heads may follow."""
        self._overhead_bytes = 0
        """Bytes of the current head, or of the framing of the current body: a lower bound."""
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
        is_short = len(data) <= _CHUNK_BYTES and not self._unparsed
        if is_short and len(self.pipeline) < _MAX_PIPELINED:
            self._parse_chunk(data)
        else:
            self._unparsed += data
            self._parse_buffered()

    @override
    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's may say to stay open
        """Answer the requests that the client sent in full before it half-closed, then close.

        Over TLS the event loop closes the connection at once.
        """
        if self._is_lingering:
            self.transport.close()
            return self.stays_half_open
        self._is_at_eof = True
        if not self._unparsed:
            self._end_at_eof()
        return self.stays_half_open

    @property
    def stays_half_open(self) -> bool:
        """Whether answers can be sent to a client that sends no more."""
        return self.transport.get_extra_info("sslcontext") is None

    @override
    def on_message_begin(self) -> None:
        self._events += 1
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            return  # trailers: RFC 9110 forbids treating them as header fields
        if len(self.headers) == MAX_FIELDS:
            self._stop(header_fields_too_large())
        # The parser keeps whitespace after a value, which is not part of it (RFC 9112, 5.1).
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
            if self._has_large_chunk or self._overhead_bytes + 2 * _CHUNK_BYTES > MAX_HEAD_BYTES:
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
            self.scope["path"] = self.root_path + decode_path(self.scope["raw_path"].decode())

    @override
    def on_message_complete(self) -> None:
        if self._ignores_upgrade:
            return  # the parser ends the message at an upgrade, but the body follows
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
            self._parse_buffered()
        if not self._unanswered:
            if self._refusal is not None:
                self._end_refused(self._refusal)
            elif self._is_at_eof:
                self.transport.close()

    def refuse(self, error: GatewayError) -> None:
        """Stop reading, and close the connection with `error` after all earlier responses."""
        self._refusal = error
        self._abandon_body()
        if self._unanswered:
            self.flow.pause_reading()
        else:
            self._end_refused(error)

    def _parse_buffered(self) -> None:
        """Parse buffered bytes until the bound on pipelined requests is reached."""
        unparsed = memoryview(self._unparsed)
        while unparsed and self._refusal is None and len(self.pipeline) < _MAX_PIPELINED:
            size = _BODY_CHUNK_BYTES if self._is_in_body else _CHUNK_BYTES
            self._parse_chunk(unparsed[:size])
            unparsed = unparsed[size:]
        self._unparsed = b"" if self._refusal is not None else bytes(unparsed)
        self.flow.is_held = bool(self._unparsed)
        if self._unparsed:
            self.flow.pause_reading()
        elif self._is_at_eof:
            self._end_at_eof()

    def _end_at_eof(self) -> None:
        """Close a connection that the client has half-closed, once all requests are answered."""
        self._abandon_body()
        if self._unanswered:
            self.cycle.keep_alive = False
        elif self._refusal is None:
            self.transport.close()

    def _parse_chunk(self, data: bytes | memoryview) -> None:
        events = self._events
        self._has_large_chunk = self._has_large_chunk or len(data) > _CHUNK_BYTES
        body = len(self.cycle.body) if self._is_in_body else 0
        try:
            self._feed_parser(data)
        except httptools.HttpParserError as error:
            self.refuse(self._refusal or parser_error(error, self.parser.get_method()))
            return
        if self._events != events:
            self._overhead_bytes = 0
        elif self._is_in_body:
            self._count_body(len(data), len(self.cycle.body) - body)
        else:
            self._overhead_bytes += len(data)
            if self._overhead_bytes > MAX_HEAD_BYTES:
                self.refuse(header_fields_too_large())

    def _count_body(self, size: int, kept: int) -> None:
        """Count `size` received bytes of a body, `kept` of which reached the application."""
        if self.cycle.response_complete:
            self._overhead_bytes += size
            if self._overhead_bytes > _MAX_DISCARDED_BYTES:
                self.transport.abort()
        elif self.cycle.more_body:
            self._overhead_bytes = max(
                0, self._overhead_bytes + size - kept * (1 + _FRAMING_PER_BYTE)
            )
            if self._overhead_bytes > _MAX_FRAMING_BYTES:
                self.refuse(InvalidRequest("The body's chunks have too much beside their data."))

    def _feed_parser(self, data: bytes | memoryview) -> None:
        """Feed the parser; an upgrade is ignored (RFC 9110), and what follows is parsed as HTTP."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._ignores_upgrade = False
                framing = [b"%b: %b\r\n" % h for h in self.headers if h[0] in _FRAMING_FIELDS]
                self.parser = httptools.HttpRequestParser(UpgradeBodyReader(self))
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
            else:
                return

    def _stop(self, error: GatewayError) -> None:
        """Stop the parser from within one of its callbacks."""
        self._refusal = error
        raise _ParsingStopped

    def _abandon_body(self) -> None:
        """Abandon the request whose body will not be read to its end, if there is one."""
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
        self.transport.write(
            encode_refusal(error, self._new_id(), self.server_state.default_headers)
        )
        self.linger()

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > _MAX_DISCARDED_BYTES:
            self.transport.pause_reading()

    def linger(self) -> None:
        """Send no more, and close when the peer closes, or after `_LINGER_TIMEOUT`."""
        self._is_lingering = True
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_TIMEOUT, self.transport.close)
