"""Answers a call inside the HTTP protocol where its items are one query each.

There is no ASGI, no task and no coroutine: outcomes are written when they are ready.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from backends.algorithms.base import QueryAlgorithm
from backends.serving.call_work import CallWork
from backends.serving.core import ServingCore
from backends.serving.items import ItemAnswerer
from backends.serving.queries import ITEMS_AT_ONCE, QueryCall
from wire.http.connection import Connection
from wire.http.messages import CLOSE, STATUS_LINE, answer_head
from wire.protocol import MEDIA_TYPE, Frame, encode_frame

_CONTENT: Final = b"content-type: %b\r\n" % MEDIA_TYPE.encode()
_CHUNKED: Final = STATUS_LINE[200] + _CONTENT + b"transfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
# So long outcomes of one request wait for the others: it cannot be answered without them.
_LONGEST_HOLD: Final = 0.05


class ProgressTimer:
    """Has calls in progress report once in `interval`, by one timer for all of them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._calls: set[DirectCall] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: "DirectCall") -> None:
        """Have a call report from now on."""
        self._calls.add(call)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval, self._on_timer)

    def remove(self, call: "DirectCall") -> None:
        """Have a call report no more."""
        self._calls.discard(call)

    def _on_timer(self) -> None:
        calls, self._calls, self._timer = self._calls, set(), None
        for call in calls:
            call.report_progress()
            self.add(call)


class DirectCall:
    """Answers a call. It is the request under way of its connection."""

    def __init__(
        self,
        connection: Connection,
        core: ServingCore,
        answerer: ItemAnswerer,
        algorithm: QueryAlgorithm,
        *,
        work: CallWork,
        progress: ProgressTimer,
    ) -> None:
        self.is_complete = False
        self._connection = connection
        self._core = core
        self._work = work
        self._progress = progress
        self._has_begun = False
        self._is_last = False
        """Whether the connection ends with the answer."""
        self._flushing: asyncio.Handle | None = None
        call = answerer.call
        # More items than that begin as others are sent.
        self._may_hold = call.atomic and len(call.items) <= ITEMS_AT_ONCE
        self._query = QueryCall(answerer, algorithm, self._on_ready)

    def begin(self) -> None:
        """Begin to answer."""
        self._connection.answering = self
        self._connection.client.on_leave = self._close
        self._core.calls.begin()
        self._progress.add(self)
        self._query.begin()

    def report_progress(self) -> None:
        """Send a report if the call waits and does not hang."""
        if self._work.has_progressed():
            self._write(self._core.report_frame(), is_last=False)

    def _on_ready(self) -> None:
        """Send the last outcomes at once; others with those of this event-loop iteration.

        Those of one request are held for the last of them, unless one has failed: the gateway then
        ends the others.
        """
        if self._query.is_ready:
            self._flush()
            return
        if self._may_hold and self._query.has_failed:
            self._may_hold = False
            self._stop_flushing()
        if self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flushing = (
                loop.call_later(_LONGEST_HOLD, self._flush)
                if self._may_hold
                else loop.call_soon(self._flush)
            )

    def _stop_flushing(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    def _flush(self) -> None:
        self._stop_flushing()
        if self.is_complete or self._connection.client.is_disconnected:
            return
        outcomes = self._query.take()
        is_last = self._query.is_over
        if outcomes:
            self._write(_encode(outcomes) + self._core.report_frame(), is_last=is_last)
        if is_last:
            self._close()
            self.is_complete = True
            self._connection.end_answer(is_last=self._is_last)
        else:
            self._query.begin()

    def _write(self, body: bytes, *, is_last: bool) -> None:
        write = self._connection.writer.write_now
        head = b""
        if not self._has_begun:
            self._is_last = self._connection.is_last
            if is_last:
                write(answer_head(200, _CONTENT, len(body), is_last=self._is_last) + body)
                return
            self._has_begun = True
            head = b"%b%b\r\n" % (_CHUNKED, CLOSE if self._is_last else b"")
        end = _LAST_CHUNK if is_last else b""
        write(b"%b%x\r\n%b\r\n%b" % (head, len(body), body, end))

    def _close(self) -> None:
        """Release what the call holds; what is not answered is cancelled."""
        self._connection.client.on_leave = None
        self._stop_flushing()
        self._query.close()
        self._progress.remove(self)
        self._work.close()
        self._core.calls.end()


def answer_at_once(connection: Connection, status: int, body: bytes) -> None:
    """Send a whole response to a request that nothing else answers."""
    is_last = connection.is_last
    head = answer_head(status, _CONTENT, len(body), is_last=is_last)
    connection.writer.write_now(head + body)
    connection.end_answer(is_last=is_last)


def _encode(outcomes: Sequence[Frame]) -> bytes:
    return b"".join(map(encode_frame, outcomes)) if len(outcomes) > 1 else encode_frame(outcomes[0])
