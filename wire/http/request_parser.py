"""Parses requests within bounds, and tells of heads, bodies and ends."""

import logging
import time
from collections.abc import Callable
from typing import Final

import httptools
import msgspec

from sluicegate.wire.http.refusals import FramingTooLarge, Refusal
from sluicegate.wire.http.request_head import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    check_head,
    check_size,
    decode_path,
    head_too_large,
)

_log = logging.getLogger(__name__)
CHUNK_BYTES: Final = 4 * 1024
"""How much may be fed at once, so that the bounds are checked often enough."""
# The bound on chunk extensions, trailers and chunk lengths; and the allowance for each byte of a
# body, since chunks may be as small as one byte.
_MAX_FRAMING_BYTES: Final = 16 * 1024
_FRAMING_PER_BYTE: Final = 16
_FRAMING_FIELDS: Final = (b"content-length", b"transfer-encoding")


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """The head of a request. Names of `headers` are in lower case."""

    method: str
    target: bytes
    version: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    keeps_alive: bool
    expects_continue: bool


class RequestParser:
    """Parses what one client sends. Trailers are dropped, and upgrades ignored (RFC 9110).

    `on_head` is called for each request and may raise `Refusal`, `on_body` for the parts of its
    body, and `on_end` at its end. `on_end` takes whether nothing more can be parsed: a trailer may
    say `Connection: close`, although it must not.
    """

    def __init__(
        self,
        *,
        on_head: Callable[[RequestHead], object],
        on_body: Callable[[bytes], object],
        on_end: Callable[[bool], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_between = True
        """Whether the next byte begins a request."""
        self.began = 0.0
        """When the last request began."""
        self.is_in_head = False
        self.is_in_body = False
        self.headers: list[tuple[bytes, bytes]] = []
        self.discarded_bytes: int | None = None
        """Bytes of a body that nobody reads any more; `None` while somebody does."""
        self._on_head = on_head
        self._on_body = on_body
        self._on_end = on_end
        self._clock = clock
        self._parser = _new_parser(self)
        self._target = b""
        self._expects_continue = False
        self._keeps_alive = False
        self._ignores_upgrade = False
        self._events = 0
        self._kept_bytes = 0
        """Bytes of the body in the last chunk."""
        self._overhead_bytes = 0
        """Bytes of the current head, or of the framing of the current body: a lower bound."""

    def feed(self, data: bytes | memoryview) -> None:
        """Parse a chunk of at most `CHUNK_BYTES`.

        Raises:
            Refusal: it is not HTTP, or beyond a bound.
        """
        events, self._kept_bytes = self._events, 0
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            raise _refusal_of(error, self._parser.get_method()) from None
        if self._events != events:
            self._overhead_bytes = 0
        elif self.is_in_body:
            self._count_body(len(data))
        else:
            self._overhead_bytes += len(data)
            if self._overhead_bytes > MAX_HEAD_BYTES:
                raise head_too_large()

    def forget_empty_lines(self) -> None:
        """Forget the empty lines that came before requests which a front has answered since."""
        self._overhead_bytes = 0

    def close(self) -> None:
        """Drop the callbacks; nothing may be fed any more."""
        del self._on_head, self._on_body, self._on_end, self._parser

    def on_message_begin(self) -> None:
        """Begin a request; called by the parser, as the next ones are."""
        if self.is_in_body:
            return  # this and the head that follows are synthetic: see `_feed`
        self._events += 1
        self.is_between, self.is_in_head = False, True
        self.began = self._clock()
        self.headers = []
        self._target = b""
        self._expects_continue = False
        self.discarded_bytes = None

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field."""
        if self.is_in_body:
            return  # trailers, too: RFC 9110 forbids treating them as header fields
        if len(self.headers) == MAX_FIELDS:
            raise head_too_large()
        # The parser keeps whitespace after a value, which is not part of it (RFC 9112, 5.1).
        value = value.rstrip(b" \t")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head, and pass it on."""
        if self.is_in_body:
            return
        parser, target = self._parser, self._target
        version = parser.get_http_version()
        check_head(version, target, self.headers)
        if self._overhead_bytes + 2 * CHUNK_BYTES > MAX_HEAD_BYTES:
            check_size(target, self.headers)
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise Refusal(400, "The target of the request is no URL.") from None
        path = url.path.decode("ascii")
        self._events += 1
        self.is_in_head, self.is_in_body = False, True
        self._ignores_upgrade = parser.should_upgrade()
        self._keeps_alive = version != "1.0" and parser.should_keep_alive()
        self._on_head(
            RequestHead(
                parser.get_method().decode("ascii"),
                target,
                version,
                decode_path(path) if b"%" in target else path,
                url.path,
                url.query or b"",
                self.headers,
                self._keeps_alive,
                self._expects_continue and version != "1.0",
            )
        )

    def on_body(self, data: bytes) -> None:
        """Pass on a part of the body."""
        self._kept_bytes += len(data)
        self._on_body(data)

    def on_message_complete(self) -> None:
        """End the request, unless its body follows behind an upgrade."""
        if self._ignores_upgrade:
            return  # the parser ends the message at an upgrade, but the body follows
        self._events += 1
        # The parser drops what follows a trailer `Connection: close`.
        is_over = self._keeps_alive and not self._parser.should_keep_alive()
        self.is_in_body, self.is_between = False, not is_over
        self._on_end(is_over)

    def _feed(self, data: bytes | memoryview) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser takes what follows for another protocol: a new one reads the body.
                data = data[upgrade.args[0] :]
                self._ignores_upgrade = False
                framing = [b"%b: %b\r\n" % h for h in self.headers if h[0] in _FRAMING_FIELDS]
                self._parser = _new_parser(self)
                self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
            else:
                return

    def _count_body(self, size: int) -> None:
        if self.discarded_bytes is not None:
            self.discarded_bytes += size
            return
        kept = self._kept_bytes * (1 + _FRAMING_PER_BYTE)
        self._overhead_bytes = max(0, self._overhead_bytes + size - kept)
        if self._overhead_bytes > _MAX_FRAMING_BYTES:
            raise FramingTooLarge(400, "The body's chunks have too much beside their data.")


def _new_parser(callbacks: object) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(callbacks)
    # Requests that follow a last one are dropped, not refused.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _refusal_of(error: httptools.HttpParserError, method: bytes) -> Refusal:
    if isinstance(error, httptools.HttpParserCallbackError):
        if isinstance(error.__context__, Refusal):
            return error.__context__
        _log.error("unexpected failure", exc_info=error)
        return Refusal(500, "The server failed; its log says why.")
    if method == b"PRI":
        return Refusal(505, "HTTP/2 is not spoken here; use HTTP/1.1.")
    return Refusal(400, f"This is no HTTP/1.1: {error}.")
