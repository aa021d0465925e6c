"""Coalesces equal items across workers by claims in the shared cache.

Within a worker, `gateway.inference.coalescing` does the same. A claim lies in Redis under the
address of the answer and says which worker computes the answer. The look-up of the answer reads the
claim, so a request without equal requests does not wait.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import msgspec

from gateway.cache.key import CacheKey
from gateway.dispatch.work import (
    Outcomes,
    Settle,
    StartedParts,
    StartedWork,
    Work,
    WorkItem,
    WorkRunner,
    finish,
)
from gateway.dispatch.work_task import WorkTask
from gateway.inference.interfaces import SharedCache
from gateway.inference.outcomes import hit_outcome, joined_outcome
from gateway.tasks import TaskStarter
from gateway.telemetry.tracing import Tracer
from gateway.types import ItemOutcome

_FIRST_PAUSE = 0.002
_SHORT_PAUSE = 0.016
_LONGEST_PAUSE = 0.25
_SHARE_OF_WAIT = 0.1
"""The part of the time waited so far that a pause longer than the short one may last."""
_SHARE_OF_TIME = 0.5
"""The part of the time left until the deadline for which items wait. The rest is for computing
them."""
_SHORTEST_PAUSE = 0.005
_RENEWED_EACH = 0.25
"""The part of a lease after which a claim is renewed, so no claim is older than half a lease."""


class _HeldClaims(msgspec.Struct, eq=False):
    """The claims of one work from its start until they end. The end calls `on_end`.

    `unsettled` holds the keys by the items' indexes. `release` ends the claims of failed items. A
    refusal that was stored in the place of a claim stays.
    """

    unsettled: dict[int, CacheKey]
    since: float
    pass_on: Settle
    release: Callable[[Sequence[CacheKey]], object]
    on_end: "Callable[[_HeldClaims], object]"

    def settle(self, outcomes: Outcomes) -> None:
        """Settle items and end their claims."""
        end = self.unsettled.pop
        unanswered: list[CacheKey] = []
        for index, outcome in outcomes:
            key = end(index, None)
            if outcome.failure is not None and key is not None:
                unanswered.append(key)
        if unanswered:
            self.release(unanswered)
        if not self.unsettled:
            self.on_end(self)
        self.pass_on(outcomes)


class ClaimingRunner:
    """Waits for items that another worker computes already.

    If several workers need an item at once, one worker computes the item. The others wait for its
    answer while its claim lasts, for at most half of their time. A claim lasts `lease` seconds, and
    the worker renews it while it works. If the worker fails, or the claim ends without an answer,
    another worker claims the item and computes it.
    `lease` may change at any time.
    """

    def __init__(
        self,
        runner: WorkRunner,
        *,
        cache: SharedCache,
        tasks: TaskStarter,
        lease: float,
        tracer: Tracer,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._tasks = tasks
        self.lease = lease
        self._tracer = tracer
        self._wall = wall
        self._held: dict[_HeldClaims, None] = {}
        self._renewing: asyncio.TimerHandle | None = None

    def start(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> StartedWork:
        """Settle all of `work`, at the latest at the deadline."""
        keys = _keys_by_index(work.items)
        if self.lease <= 0 or not keys:
            return self._runner.start(
                work, deadline=deadline, settle=settle, traceparent=traceparent
            )
        if self._cache.has_claimed(list(keys.values())):
            return self._hold_and_start(keys, work, deadline, traceparent, settle)
        if work.is_gathered and len(work.items) > 1:
            return self._start_each(work, deadline, traceparent, settle)
        return self._start_unclaimed(work, deadline, traceparent, settle)

    def _start_each(
        self, work: Work, deadline: float, traceparent: str, settle: Settle
    ) -> StartedWork:
        """Start the items that look-ups have claimed. One command claims the other items first."""
        ours: list[WorkItem] = []
        others: list[WorkItem] = []
        for item in work.items:
            (ours if self._cache.has_claimed(_keys([item])) else others).append(item)
        parts: list[StartedWork] = []
        if others:
            part = _part(work, others)
            parts.append(self._start_unclaimed(part, deadline, traceparent, settle))
        if ours:
            part = _part(work, ours)
            parts.append(self._start_claimed(part, deadline, traceparent, settle))
        return StartedParts(parts)

    def _start_unclaimed(
        self, work: Work, deadline: float, traceparent: str, settle: Settle
    ) -> StartedWork:
        task = WorkTask(work, settle)
        return task.run(self._tasks, self._claim_and_run(work, deadline, task.settle, traceparent))

    async def _claim_and_run(
        self, work: Work, deadline: float, settle: Settle, traceparent: str
    ) -> None:
        with self._tracer.span("claim", parent=traceparent) as span:
            ours, theirs = await self._claim(work, work.items)
            span.set("sluicegate.items.ours", len(ours))
            span.set("sluicegate.items.theirs", len(theirs))

        async def run(items: Sequence[WorkItem]) -> None:
            part = _part(work, items)
            await finish(part, settle, partial(self._start_claimed, part, deadline, traceparent))

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

    def _start_claimed(
        self, work: Work, deadline: float, traceparent: str, settle: Settle
    ) -> StartedWork:
        """Run `work`, renew its claims until they end, and release claims without an answer."""
        keys = _keys_by_index(work.items)
        return self._hold_and_start(keys, work, deadline, traceparent, settle)

    def _hold_and_start(
        self,
        keys: dict[int, CacheKey],
        work: Work,
        deadline: float,
        traceparent: str,
        settle: Settle,
    ) -> StartedWork:
        """Run `work` as `_start_claimed` does, with its keys by the items' indexes."""
        loop = asyncio.get_running_loop()
        held = _HeldClaims(keys, loop.time(), settle, self._cache.release, self._forget)
        self._held[held] = None
        if self._renewing is None:
            self._renewing = loop.call_later(self._pause(), self._renew)
        try:
            return self._runner.start(
                work, deadline=deadline, settle=held.settle, traceparent=traceparent
            )
        except Exception:  # they would be renewed for ever
            self._held.pop(held, None)
            self._cache.release(list(held.unsettled.values()))
            raise

    def _forget(self, held: _HeldClaims) -> None:
        self._held.pop(held, None)

    async def _claim(
        self, work: Work, items: Sequence[WorkItem]
    ) -> tuple[list[WorkItem], list[WorkItem]]:
        """Return the items that this worker computes, and the items that other workers compute."""
        try:
            claims = await self._cache.claim(_keys(items), work.is_valid)
        except asyncio.CancelledError:
            self._cache.release(_keys(items))  # they may be on their way
            raise
        if True not in claims:
            return list(items), []
        claimed = iter(claims)
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
        settle: Settle,
    ) -> AsyncIterator[list[WorkItem]]:
        """Settle items that other workers answer, and yield items without an answer in time."""
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
        settle: Settle,
    ) -> list[WorkItem]:
        """Settle the items that others have answered by now, and return the rest."""
        found = await self._cache.lookup(_keys(items), work.is_valid)
        now = self._wall()
        left: list[WorkItem] = []
        answered: list[tuple[int, ItemOutcome]] = []
        for item, one in zip(items, found, strict=True):
            if one is not None and (work.is_valid is None or work.is_valid(one.entry, now)):
                outcome = joined_outcome(hit_outcome(one.entry, one.tier, now))
                answered.append((item.index, outcome))
            else:
                left.append(item)
        if answered:
            settle(answered)
        return left

    def _renew(self) -> None:
        """Renew the claims that have been held for long, while there are any."""
        loop = asyncio.get_running_loop()
        pause = self._pause()
        self._renewing = loop.call_later(pause, self._renew) if self._held else None
        if self.lease <= 0:  # claims were switched off
            return
        before = loop.time() - pause
        for held in self._held:
            if held.since <= before and held.unsettled:
                self._cache.renew(list(held.unsettled.values()))

    def _pause(self) -> float:
        """Return the seconds until claims are renewed; shorter leases than that end before."""
        return max(_SHORTEST_PAUSE, self.lease * _RENEWED_EACH)


def _part(work: Work, items: Sequence[WorkItem]) -> Work:
    return msgspec.structs.replace(work, items=tuple(items))


def _keys(items: Sequence[WorkItem]) -> list[CacheKey]:
    return [item.key for item in items if item.key is not None]


def _keys_by_index(items: Sequence[WorkItem]) -> dict[int, CacheKey]:
    return {item.index: item.key for item in items if item.key is not None}
