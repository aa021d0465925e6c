"""Coalesces equal items across workers by claims in the shared cache.

Within a worker `gateway.inference.coalescing` does the same. A claim lies in Redis under the
address of the answer and says which worker computes it. The look-up of the answer reads it, so that
requests without equal ones wait for nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from gateway.cache.key import CacheKey
from gateway.dispatch.work import Work, WorkItem, WorkRunner
from gateway.inference.interfaces import SharedCache
from gateway.inference.outcomes import hit_outcome, joined_outcome
from gateway.telemetry.tracing import Tracer
from gateway.types import ItemOutcome

_FIRST_PAUSE = 0.002
_SHORT_PAUSE = 0.016
_LONGEST_PAUSE = 0.25
_SHARE_OF_WAIT = 0.1
"""Of the time waited so far: what pauses beyond the short one may add to it."""
_SHARE_OF_TIME = 0.5
"""Of what is left until the deadline: the rest is for computing it after all."""
_SHORTEST_PAUSE = 0.005
_REFUSED = 422
"""The status of failures that are stored, and answer others as well."""
_RENEWED_AFTER = 0.5
"""Of a lease: a claim that is renewed so early outlives a renewal that is late."""


class ClaimingRunner:
    """A runner that waits for items that another worker computes already.

    Of all workers that need an item at once, one computes it: the others wait for its
    answer while its claim lasts (`lease` seconds, renewed while it works), for half of their time
    at most. Where it fails, or a claim ends without an answer, one of them claims the item and
    computes it.
    `lease` may be changed at any time.
    """

    def __init__(
        self,
        runner: WorkRunner,
        *,
        cache: SharedCache,
        lease: float,
        tracer: Tracer,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._runner = runner
        self._cache = cache
        self.lease = lease
        self._tracer = tracer
        self._wall = wall

    async def run(
        self,
        work: Work,
        *,
        deadline: float,
        settle: Callable[[int, ItemOutcome], None],
        traceparent: str = "",
    ) -> None:
        """Settle all of `work`, at the latest at the deadline."""
        if self.lease <= 0 or all(item.key is None for item in work.items):
            await self._runner.run(work, deadline=deadline, settle=settle, traceparent=traceparent)
            return
        with self._tracer.span("claim", parent=traceparent) as span:
            ours, theirs = await self._claim(work, work.items)
            span.set("sluicegate.items.ours", len(ours))
            span.set("sluicegate.items.theirs", len(theirs))

        async def run(items: Sequence[WorkItem]) -> None:
            part = msgspec.structs.replace(work, items=tuple(items))
            with self._renewing_claims(items) as note:

                def note_and_settle(index: int, outcome: ItemOutcome) -> None:
                    note(index, outcome)
                    settle(index, outcome)

                await self._runner.run(
                    part, deadline=deadline, settle=note_and_settle, traceparent=traceparent
                )

        if not theirs:
            await run(ours)
            return
        waiting = self._tracer.span("wait for other workers", parent=traceparent)
        async with asyncio.TaskGroup() as tasks:
            if ours:
                tasks.create_task(run(ours))
            now = asyncio.get_running_loop().time()
            until = now + (deadline - now) * _SHARE_OF_TIME
            with waiting:
                async for items in self._abandoned_by_others(work, theirs, until, settle):
                    tasks.create_task(run(items))

    async def _claim(
        self, work: Work, items: Sequence[WorkItem]
    ) -> tuple[list[WorkItem], list[WorkItem]]:
        """Return which of `items` this worker computes, and which another does."""
        claimed = iter(await self._cache.claim(_keys(items), work.is_valid))
        ours: list[WorkItem] = []
        theirs: list[WorkItem] = []
        for item in items:
            is_theirs = item.key is not None and next(claimed)
            (theirs if is_theirs else ours).append(item)
        return ours, theirs

    async def _abandoned_by_others(
        self,
        work: Work,
        items: list[WorkItem],
        until: float,
        settle: Callable[[int, ItemOutcome], None],
    ) -> AsyncIterator[list[WorkItem]]:
        """Settle what other workers answer, and yield items that they do not answer in time."""
        now = asyncio.get_running_loop().time
        began, pause = now(), _FIRST_PAUSE
        while items and now() < until:
            await asyncio.sleep(min(pause, until - now()))
            long_pause = min(_LONGEST_PAUSE, (now() - began) * _SHARE_OF_WAIT)
            pause = min(2 * pause, max(_SHORT_PAUSE, long_pause))
            items = await self._settle_answered(work, items, settle)
            # The look-up has just read the claims of others: to ask for these costs nothing.
            ours, items = await self._claim(work, items)
            if ours:
                yield ours
        if items:
            yield items

    async def _settle_answered(
        self,
        work: Work,
        items: Sequence[WorkItem],
        settle: Callable[[int, ItemOutcome], None],
    ) -> list[WorkItem]:
        """Settle what others have answered by now, and return the rest."""
        found = await self._cache.lookup(_keys(items), work.is_valid)
        now = self._wall()
        left: list[WorkItem] = []
        for item, one in zip(items, found, strict=True):
            if one is not None and (work.is_valid is None or work.is_valid(one.entry, now)):
                settle(item.index, joined_outcome(hit_outcome(one.entry, one.tier, now)))
            else:
                left.append(item)
        return left

    @contextmanager
    def _renewing_claims(
        self, items: Sequence[WorkItem]
    ) -> Iterator[Callable[[int, ItemOutcome], None]]:
        """Renew the claims on `items` until they end, as is noted; release what has no answer."""
        loop = asyncio.get_running_loop()
        unsettled = {item.index: item.key for item in items if item.key is not None}
        unanswered = dict(unsettled)
        timer: asyncio.TimerHandle

        def note(index: int, outcome: ItemOutcome) -> None:
            unsettled.pop(index, None)
            if outcome.failure is None or outcome.failure.status == _REFUSED:
                unanswered.pop(index, None)

        def renew() -> None:
            nonlocal timer
            if self.lease > 0:  # claims may have been switched off
                if unsettled:
                    self._cache.renew(list(unsettled.values()))
                timer = loop.call_later(self._pause(), renew)

        timer = loop.call_later(self._pause(), renew)
        try:
            yield note
        finally:
            timer.cancel()
            if unanswered:
                self._cache.release(list(unanswered.values()))

    def _pause(self) -> float:
        """Return the seconds until claims are renewed; shorter leases than that end before."""
        return max(_SHORTEST_PAUSE, self.lease * _RENEWED_AFTER)


def _keys(items: Sequence[WorkItem]) -> list[CacheKey]:
    return [item.key for item in items if item.key is not None]
