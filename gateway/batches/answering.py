"""Answers the lines of batches: asks until there is an answer, as long as the batch has time."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from gateway.batches.lines import (
    Line,
    answer_line,
    expired_failure,
    failure_line,
    item_id,
)
from gateway.batches.window import CongestionWindow
from gateway.ledger.batch_types import RequestBatch
from gateway.workers.backoff import StoppableBackoff, pause

_OK = 300
BUSY = frozenset({429, 503, 504})
"""The gateway has no room: fewer lines are sent at a time."""
_MOST_ATTEMPTS = {500: 3, 502: 4, 504: 10}
"""How often each failure may come that may never end; 429 and 503 are for the whole window."""
_LONGEST_WAIT = 30.0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's answer to a request; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class LineRunner(Protocol):
    """Answers requests of tenants as the gateway's own listener does, as bulk work."""

    async def ask(self, batch: RequestBatch, request_id: str, body: bytes) -> Reply:
        """Return the answer to `POST` to the batch's endpoint, for the key that made the batch.

        Requests with one `request_id` are billed once.
        """
        ...


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The output line of a line, and whether it is one of a success, or of the batch's expiry."""

    line: bytes
    is_success: bool = False
    is_expired: bool = False


class LineAnswerer:
    """Answers lines through `runner`, up to `most` at a time.

    Each tenant has a window of its own: the refusals of one slow down nobody else.
    """

    def __init__(
        self,
        *,
        runner: LineRunner,
        most: int,
        window: Callable[[], CongestionWindow],
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._runner = runner
        self._places = asyncio.Semaphore(most)
        self._windows = defaultdict[str, CongestionWindow](window)
        self._wall = wall

    async def answer(
        self, batch: RequestBatch, line: Line, halt: asyncio.Event, places: asyncio.Semaphore
    ) -> Result | None:
        """Return the result of a line, `None` where `halt` was set before there was one.

        The caller has one of `places`. While a line waits to be asked again, others have it.
        """
        if line.failure is not None:
            return Result(line=failure_line(batch, line, line.failure))
        backoff = StoppableBackoff(longest=_LONGEST_WAIT)
        replies = Counter[int]()
        while not halt.is_set():
            if self._wall() >= batch.expires:
                failure = expired_failure(line)
                return Result(line=failure_line(batch, line, failure), is_expired=True)
            reply = await self._ask(batch, line, halt)
            if reply is None:
                break
            wait = backoff.failed()
            replies[reply.status] += 1
            if _is_final(reply, replies[reply.status]):
                media = reply.headers.get("content-type", "")
                status = reply.status
                output = answer_line(batch, line, status=status, body=reply.body, media=media)
                return Result(line=output, is_success=status < _OK)
            left = max(0.0, batch.expires - self._wall())
            # Only the end of the whole batch cancels this wait; then no place is counted any more.
            places.release()
            await pause(halt, min(max(wait, _retry_after(reply)), _LONGEST_WAIT, left))
            await places.acquire()
        return None

    async def _ask(self, batch: RequestBatch, line: Line, halt: asyncio.Event) -> Reply | None:
        window = self._windows[batch.tenant]
        await window.enter()
        is_refused = False
        try:
            async with self._places:
                if halt.is_set():
                    return None
                reply = await self._runner.ask(batch, item_id(batch, line), line.body)
            is_refused = reply.status in BUSY
            return reply
        finally:
            window.leave(refused=is_refused)


def _is_final(reply: Reply, times: int) -> bool:
    """Tell whether an answer whose status came so many `times` stays however often it is asked."""
    if reply.headers.get("x-should-retry") == "false":
        return True
    if reply.status in _MOST_ATTEMPTS:
        return times >= _MOST_ATTEMPTS[reply.status]
    return reply.status not in BUSY


def _retry_after(reply: Reply) -> float:
    try:
        return float(reply.headers.get("retry-after-ms", "0")) / 1000
    except ValueError:
        return 0.0
