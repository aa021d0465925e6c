"""Answers the lines of batches: asks until there is an answer, as long as the batch has time."""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from sluicegate.gateway.batches.lines import (
    Line,
    answer_line,
    expired_failure,
    failure_line,
    item_id,
)
from sluicegate.gateway.errors import UpstreamFailed
from sluicegate.gateway.ledger.batch_types import RequestBatch
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.workers.backoff import StoppableBackoff

_OK = 300
LATE = 504
BUSY = frozenset({402, 429, 503, LATE})
"""There is no room, time or budget: fewer lines are sent at a time, for the whole window."""
_MOST_ATTEMPTS = {500: 3, 502: 4}
"""How often each failure may come that may never end."""
_LONGEST_WAIT = 30.0
_FAILED_DEPENDENCY = 424
_GROWTH = 1.0
_CUT = 0.5


class _WithCode(msgspec.Struct, frozen=True):
    code: str = ""


_decode_code = msgspec.json.Decoder(_WithCode).decode


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's answer to a request; names of headers are in lower case.

    `passing` has the statuses of items without an answer beside others, which another try may
    answer. The event of such a reply is withheld until `publish`, which tells if it is in the log.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    passing: frozenset[int] = frozenset()
    publish: Callable[[], bool] = lambda: True


class LineRunner(Protocol):
    """Answers requests of tenants as the gateway's own listener does, as bulk work."""

    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        """Return the answer to `POST` to the batch's endpoint, for the key that made the batch.

        Requests with one `request_id` are billed once. It may take twice as long for each time that
        it was `late`, up to the seconds `left`.
        """
        ...


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The output line of a line, and whether it is one of a success, or of the batch's expiry."""

    line: bytes
    is_success: bool = False
    is_expired: bool = False


class CongestionWindow:
    """Admits up to `most` items at a time, less while items are refused for lack of capacity.

    Additive increase, multiplicative decrease, at most one decrease a second (Chiu and Jain, 1989).
    """

    def __init__(self, most: int, *, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._limit = float(most)
        self._in_flight = 0
        self._cut_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many items may be in flight now."""
        return max(1, int(self._limit))

    async def enter(self) -> None:
        """Wait until one more item may be in flight."""
        while self._in_flight >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._admit()  # another one may go in its place
                raise
        self._in_flight += 1

    def leave(self, *, refused: bool) -> None:
        """Note that an item has ended, refused for lack of capacity or not."""
        self._in_flight -= 1
        if not refused:
            self._limit = min(self._most, self._limit + _GROWTH / self._limit)
        elif self._clock() >= self._cut_at:
            self._limit = max(1.0, self._limit * _CUT)
            self._cut_at = self._clock() + 1.0
        self._admit()

    def _admit(self) -> None:
        for _ in range(self.limit - self._in_flight):
            while self._waiting and self._waiting[0].done():
                del self._waiting[0]
            if not self._waiting:
                return
            self._waiting.popleft().set_result(None)


class LineAnswerer:
    """Answers lines through `runner`, up to `most` at a time.

    Each tenant has a window of its own: the refusals of one slow down nobody else.
    """

    def __init__(
        self,
        *,
        runner: LineRunner,
        most: int,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._runner = runner
        self._places = asyncio.Semaphore(most)
        self._windows = defaultdict[str, CongestionWindow](
            lambda: CongestionWindow(most, clock=time.monotonic)
        )
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
        partial: Reply | None = None
        while not halt.is_set():
            if self._wall() >= batch.expires:
                if partial is not None and partial.publish():
                    return _result(batch, line, partial)
                failure = expired_failure(line)
                return Result(line=failure_line(batch, line, failure), is_expired=True)
            reply = await self._ask(batch, line, halt, late=replies[LATE])
            if reply is None:
                break
            wait, failure_status = backoff.failed(), _failure_status(reply)
            replies[failure_status] += 1
            if _is_final(reply, failure_status, replies[failure_status]) and reply.publish():
                return _result(batch, line, reply)
            if reply.passing:
                partial = reply
            left = max(0.0, batch.expires - self._wall())
            # Only the end of the whole batch cancels this wait; then no place is counted any more.
            places.release()
            await pause(halt, min(max(wait, _retry_after(reply)), _LONGEST_WAIT, left))
            await places.acquire()
        return None

    async def _ask(
        self, batch: RequestBatch, line: Line, halt: asyncio.Event, *, late: int
    ) -> Reply | None:
        window = self._windows[batch.tenant]
        await window.enter()
        is_refused = False
        try:
            async with self._places:
                if halt.is_set():
                    return None
                left = batch.expires - self._wall()
                reply = await self._runner.ask(
                    batch, item_id(batch, line), line.body, late=late, left=left
                )
            is_refused = _failure_status(reply) in BUSY
            return reply
        finally:
            window.leave(refused=is_refused)


def _result(batch: RequestBatch, line: Line, reply: Reply) -> Result:
    media = reply.headers.get("content-type", "")
    output = answer_line(batch, line, status=reply.status, body=reply.body, media=media)
    return Result(line=output, is_success=reply.status < _OK)


def _is_final(reply: Reply, status: int, times: int) -> bool:
    """Tell whether an answer whose status came so many `times` stays however often it is asked."""
    if reply.headers.get("x-should-retry") == "false":
        return True
    if status in _MOST_ATTEMPTS:
        return times >= _MOST_ATTEMPTS[status]
    return status not in BUSY


def _failure_status(reply: Reply) -> int:
    """Return the status of an answer in the gateway's terms.

    Of an answer without some items it is theirs, first what may be asked for the whole window.
    On TEI's routes a backend's failure has the status of what no model answers.
    """
    if reply.passing:
        return max(reply.passing, key=lambda status: (status in BUSY, status))
    if reply.status == _FAILED_DEPENDENCY:
        try:
            if _decode_code(reply.body).code == UpstreamFailed.code:
                return UpstreamFailed.status
        except (msgspec.MsgspecError, UnicodeError):
            return reply.status
    return reply.status


def _retry_after(reply: Reply) -> float:
    try:
        return float(reply.headers.get("retry-after-ms", "0")) / 1000
    except ValueError:
        return 0.0
