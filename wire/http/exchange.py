"""Answers one request: by the messages of ASGI, or body and answer each in one piece."""

import asyncio
import logging
import re
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol

from sluicegate.wire.http.messages import (
    CLOSE,
    STATUS_LINE,
    App,
    Headers,
    Message,
    Scope,
    answer_head,
    header_lines,
)
from sluicegate.wire.http.writing import LARGE_BYTES, AnswerWriter

BUFFERED_HTTP: Final = "sluicegate.buffered_http"
"""The ASGI extension that has the `Exchange` of a request."""
_log = logging.getLogger(__name__)
# Reading pauses while more bytes of a body than this wait for the application.
_MAX_WAITING_BYTES: Final = 64 * 1024
_BAD_NAME: Final = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS: Final = frozenset({204, 304})
_FAILURE: Final = b"Internal Server Error"
_STOPPED: Final = b"Service Unavailable"
"""The body of the answer to a request that the server gives up when it stops."""


class Line(Protocol):
    """The connection of an exchange."""

    writer: AnswerWriter

    @property
    def default_lines(self) -> bytes:
        """The header lines that come first in every answer."""
        ...

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with the answer that begins now."""
        ...

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`."""
        ...

    def resume_reading(self) -> None:
        """Read what the client sends."""
        ...

    def end_answer(self, *, is_last: bool) -> None:
        """Note that the current request is answered."""
        ...


class Exchange:
    """One request and its answer."""

    is_complete = False
    """Whether the answer is written."""
    is_disconnected = False
    """Whether nobody waits for the answer any more."""
    on_disconnect: Callable[[], object] | None = None
    """Is called when nobody waits any more: the application may set it."""
    has_begun = False
    """Whether a part of the answer is written."""
    _body_size = 0
    _end_is_told = False
    _news: asyncio.Event | None = None
    _is_last = False
    _is_chunked = False
    _is_unframed = False
    """Whether the answer ends with the connection."""
    _left_bytes = 0

    def __init__(
        self,
        line: Line,
        scope: Scope,
        *,
        keeps_alive: bool = True,
        expects_continue: bool = False,
        body: bytes | None = None,
    ) -> None:
        self.scope: Scope | None = scope
        """Dropped when the application has it: the scope then refers to the exchange, and such a
        cycle would be left to the garbage collector."""
        self.keeps_alive = keeps_alive
        self.expects_continue = expects_continue
        """Whether the client waits with its body for `100 Continue`."""
        self.has_body = body is not None
        """Whether the body has arrived to its end."""
        self._line = line
        self._is_head = scope["method"] == "HEAD"
        self._is_old = scope.get("http_version") == "1.0"
        """Whether the client does not know chunks."""
        self._body_parts = [body] if body else []

    def add_body(self, data: bytes) -> None:
        """Take a part of the body."""
        if self.is_complete:
            return
        self._body_parts.append(data)
        self._body_size += len(data)
        if self._body_size > _MAX_WAITING_BYTES:
            self._line.pause_reading()
        self._wake()

    def end_body(self) -> None:
        """Note that the body is complete."""
        self.has_body = True
        self._wake()

    def disconnect(self) -> None:
        """Note that nobody waits for the answer."""
        self.is_disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
        self._wake()

    async def run(self, app: App) -> None:
        """Have the application answer."""
        scope: Any
        scope, self.scope = self.scope, None
        scope["extensions"] = {BUFFERED_HTTP: self}
        try:
            await app(scope, self.receive, self.send_message)
        except BaseException as error:  # whatever it was, it must not end the server
            _log.error("the application failed", exc_info=error)
            is_cancelled = isinstance(error, asyncio.CancelledError)
            self._fail(is_cancelled=is_cancelled)
            if is_cancelled:
                raise
            return
        if not self.is_complete and not self.is_disconnected:
            _log.error("the application returned without a complete answer")
            self._fail()

    def body(self) -> bytes | None:
        """Return the whole body; `None` where it has to be waited for, by `receive`."""
        if not self.has_body or self.is_disconnected or self.expects_continue:
            return None
        self._line.resume_reading()
        return self._take_body()

    async def send(self, status: int, lines: bytes, body: bytes, holder: Hashable = None) -> None:
        """Send a whole answer. A large answer is sent in pieces.

        `lines` are its header lines without the length, with names in lower case, each ended by
        CRLF. The only `connection` header among them may be `CLOSE`. `holder` is the key that holds
        bytes of the budget for the answer.
        """
        writer = self._line.writer
        await self._drain()
        if self.is_disconnected:
            return
        says_so = self._begin(has_close=CLOSE in lines)
        default = self._line.default_lines
        head = answer_head(status, lines, len(body), default, is_last=says_so)
        if status in _BODILESS:  # has no length
            close = CLOSE if says_so else b""
            writer.write(b"%b%b%b%b\r\n" % (STATUS_LINE[status], default, lines, close))
        elif self._is_head:
            writer.write(head)
        elif len(body) <= LARGE_BYTES:
            writer.write(head + body)
        else:
            await writer.write_in_pieces(head, body, holder)
            if writer.is_closing():
                return
        self._end()

    def send_now(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole answer at once, whether the peer reads or not; see `send`."""
        if self.is_complete or self.is_disconnected:
            return
        says_so = self._begin(has_close=False)
        head = answer_head(status, lines, len(body), self._line.default_lines, is_last=says_so)
        self._line.writer.write_now(head if self._is_head else head + body)
        self._end()

    def send_part(self, headers: Headers, body: bytes, *, has_more: bool) -> None:
        """Send a part of an answer of unknown length, whether the peer reads or not.

        `headers` are those of the answer.
        """
        if self._is_over:
            return
        if not self.has_begun:
            self._send_head(200, list(headers))
        self._send_body(body, has_more=has_more)

    async def receive(self) -> Message:
        """Return the next message of ASGI about the request."""
        if self.expects_continue and not self._line.writer.is_closing():
            self._line.writer.write(_CONTINUE)
            self.expects_continue = False
        if not self.is_disconnected and not self.is_complete:
            self._line.resume_reading()
            while not (self._has_news or self._is_over):
                self._news = self._news or asyncio.Event()
                self._news.clear()
                await self._news.wait()
        if self._is_over:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._take_body(), "more_body": not self.has_body}

    async def send_message(self, message: Message) -> None:
        """Send a message of ASGI.

        Raises:
            RuntimeError: it is not one that may follow, or would make an invalid answer.
        """
        await self._drain()
        if self.is_disconnected:
            return
        kind = message["type"]
        expected = "http.response.body" if self.has_begun else "http.response.start"
        if self.is_complete or kind != expected:
            raise RuntimeError(f"the message `{kind}` is out of order")
        if self.has_begun:
            self._send_body(message.get("body", b""), has_more=message.get("more_body", False))
        else:
            self._send_head(message["status"], list(message.get("headers", ())))

    @property
    def _has_news(self) -> bool:
        return bool(self._body_parts) or (self.has_body and not self._end_is_told)

    @property
    def _is_over(self) -> bool:
        return self.is_disconnected or self.is_complete

    async def _drain(self) -> None:
        if self._line.writer.is_paused and not self.is_disconnected:
            await self._line.writer.drain()

    def _send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        has_close, has_length, is_chunked = False, False, False
        for place, (name, value) in enumerate(headers):
            if _BAD_NAME.search(name) or _BAD_VALUE.search(value):
                raise RuntimeError("a header of the answer is invalid")
            name = name.lower()  # noqa: PLW2901 - as it is sent
            headers[place] = (name, value)
            if name == b"content-length" and not is_chunked:
                has_length, self._left_bytes = True, int(value)
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                is_chunked, self._left_bytes = True, 0
            elif name == b"connection" and b"close" in value.lower().replace(b" ", b"").split(b","):
                has_close = True
        close = CLOSE if self._begin(has_close=has_close) else b""
        chunked = b""
        if not (has_length or is_chunked or self._is_head or status in _BODILESS):
            if self._is_old:
                self._is_unframed = True
            else:
                is_chunked, chunked = True, b"transfer-encoding: chunked\r\n"
        self._is_chunked = is_chunked
        self._line.writer.write(
            b"%b%b%b%b%b\r\n"
            % (
                STATUS_LINE[status],
                self._line.default_lines,
                header_lines(headers),
                close,
                chunked,
            )
        )

    def _send_body(self, body: bytes, *, has_more: bool) -> None:
        writer = self._line.writer
        if self._is_head:
            self._left_bytes = 0
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            writer.write(chunk if has_more else chunk + b"0\r\n\r\n")
        elif self._is_unframed:
            writer.write(body)
        elif len(body) > self._left_bytes:
            raise RuntimeError("the answer is longer than its `Content-Length`")
        else:
            self._left_bytes -= len(body)
            writer.write(body)
        if not has_more:
            if self._left_bytes:
                raise RuntimeError("the answer is shorter than its `Content-Length`")
            self._end()

    def _begin(self, *, has_close: bool) -> bool:
        """Note that the answer begins; return whether to add that it is the last."""
        self.has_begun = True
        self.expects_continue = False
        self._is_last = has_close or not self.keeps_alive or self._line.is_last
        return self._is_last and not has_close

    def _end(self) -> None:
        self.is_complete = True
        if self._news is not None:
            self._news.set()
        self._line.end_answer(is_last=self._is_last)

    def _fail(self, *, is_cancelled: bool = False) -> None:
        if self.is_complete or self.is_disconnected:
            return
        writer = self._line.writer
        # An answer that ends with its connection would seem whole.
        if self._is_unframed or (writer.is_paused and (self.has_begun or is_cancelled)):
            writer.transport.abort()
        elif self.has_begun:
            self._is_last = True
            self._end()
        else:
            status, body = (503, _STOPPED) if is_cancelled else (500, _FAILURE)
            length = b"%d" % len(body)
            plain = (b"content-type", b"text/plain; charset=utf-8")
            closes = (b"connection", b"close")
            self._send_head(status, [plain, (b"content-length", length), closes])
            self._send_body(body, has_more=False)

    def _take_body(self) -> bytes:
        parts, self._body_parts = self._body_parts, []
        self._body_size = 0
        self._end_is_told = self.has_body
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
