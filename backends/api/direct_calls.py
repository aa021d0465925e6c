"""Sends the outcomes of calls, and answers a call whose items are one query each.

Such a call needs no task and no coroutine: outcomes are written when they are ready.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from sluicegate.backends.algorithms.base import QueryAlgorithm
from sluicegate.backends.serving.call_work import CallWork
from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.serving.items import ItemAnswerer
from sluicegate.backends.serving.queries import ITEMS_AT_ONCE, QueryCall
from sluicegate.wire.http.exchange import Exchange
from sluicegate.wire.protocol import MEDIA_TYPE, Frame, encode_frame

CONTENT: Final = b"content-type: %b\r\n" % MEDIA_TYPE.encode()
_HEADERS: Final = ((b"content-type", MEDIA_TYPE.encode()),)
# So long outcomes of one request wait for the others: it cannot be answered without them.
_LONGEST_HOLD: Final = 0.05


class ProgressTimer:
    """Has calls in progress report once in `interval`, by one timer for all of them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._replies: set[CallReply] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reply: "CallReply") -> None:
        """Have a call report from now on."""
        self._replies.add(reply)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval, self._on_timer)

    def remove(self, reply: "CallReply") -> None:
        """Have a call report no more."""
        self._replies.discard(reply)

    def _on_timer(self) -> None:
        replies, self._replies, self._timer = self._replies, set(), None
        for reply in replies:
            reply.report()
            self.add(reply)


class CallReply:
    """Sends the outcomes of a call, and reports while it has none and progress is made.

    The call is in flight until `close`, which releases its work.
    """

    def __init__(
        self, exchange: Exchange, core: ServingCore, work: CallWork, progress: ProgressTimer
    ) -> None:
        self.exchange = exchange
        self._core = core
        self._work = work
        self._progress = progress
        core.calls.begin()
        work.begin()
        progress.add(self)

    def close(self) -> None:
        """End the call."""
        self._progress.remove(self)
        self._work.close()
        self._core.calls.end()

    def send(self, outcomes: Sequence[Frame], *, is_last: bool) -> None:
        """Send outcomes, and a report after them."""
        exchange = self.exchange
        body = b"".join([*map(encode_frame, outcomes), self._core.report_frame()])
        if is_last and not exchange.has_begun:
            exchange.send_now(200, CONTENT, body)
        else:
            exchange.send_part(_HEADERS, body, has_more=not is_last)

    def report(self) -> None:
        """Send a report if the call waits and does not hang."""
        if self._work.has_progressed():
            self.exchange.send_part(_HEADERS, self._core.report_frame(), has_more=True)


class DirectCall:
    """Answers a call. `on_end` is called when it is answered, or the client has left."""

    def __init__(
        self,
        reply: CallReply,
        answerer: ItemAnswerer,
        algorithm: QueryAlgorithm,
        *,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._reply = reply
        self._on_end = on_end
        self._is_over = False
        self._flushing: asyncio.Handle | None = None
        call = answerer.call
        # More items than that begin as others are sent.
        self._may_hold = call.atomic and len(call.items) <= ITEMS_AT_ONCE
        self._query = QueryCall(answerer, algorithm, self._on_ready)

    def begin(self) -> None:
        """Begin to answer."""
        self._reply.exchange.on_disconnect = self.close
        self._query.begin()

    def close(self) -> None:
        """Release what the call holds; what is not answered is cancelled. May be repeated."""
        if self._is_over:
            return
        self._is_over = True
        self._reply.exchange.on_disconnect = None
        if self._flushing is not None:
            self._flushing.cancel()
        self._query.close()
        self._reply.close()
        if self._on_end is not None:
            self._on_end()

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
        if self._is_over:
            return
        outcomes = self._query.take()
        if self._query.is_over:
            self.close()
            self._reply.send(outcomes, is_last=True)
            return
        self._stop_flushing()
        if outcomes:
            self._reply.send(outcomes, is_last=False)
        self._query.begin()
