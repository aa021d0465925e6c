"""Coalesces equal items across workers by claims in the shared cache.

Within a worker, `gateway.inference.coalescing` does the same. A claim lies in Redis under the
address of the answer and says which worker computes the answer. The look-up of the answer reads the
claim, so a request without equal requests does not wait.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.dispatch.work import OpenItem, WorkRunner, are_open, run, settle
from sluicegate.gateway.inference.interfaces import SharedCache
from sluicegate.gateway.inference.outcomes import hit_outcome, joined_outcome
from sluicegate.gateway.tasks import TaskStarter
from sluicegate.gateway.telemetry.tracing import Tracer

_FIRST_PAUSE = 0.002
_SHORT_PAUSE = 0.016
_LONGEST_PAUSE = 0.25
_SHARE_OF_WAIT = 0.1
"""The part of the time waited so far that a pause longer than the short one may last."""
_SHARE_OF_TIME = 0.5
"""The part of the time left until the deadline for which items wait. The rest is for computing
them."""
_SHORTEST_PAUSE = 0.005
# Read by C code, without a step in Python for each item.
_key = attrgetter("key")
_RENEWED_EACH = 0.25
"""The part of a lease after which a claim is renewed, so no claim is older than half a lease."""


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
        self.cancel = runner.cancel
        """See `WorkRunner.cancel`."""
        self._cache = cache
        self._tasks = tasks
        self.lease = lease
        self._tracer = tracer
        self._wall = wall
        self._loop = asyncio.get_running_loop()
        self._held: dict[OpenItem, float] = {}
        """The items that this worker has claimed, each with the time since when, in order."""
        self._renewing: asyncio.TimerHandle | None = None

    def start(self, items: Sequence[OpenItem]) -> None:
        """See `WorkRunner.start`."""
        if self.lease <= 0 or not items[0].work.is_shared:
            self._runner.start(items)
        elif self._cache.has_claimed(list(map(_key, items))):
            self._hold_and_start(items)
        else:
            left = dict.fromkeys(items)
            run(self._tasks, self._claim_and_start(left), left)

    def items_ended(self, items: Iterable[OpenItem]) -> None:
        """End the claims on items that were settled.

        A refusal that was stored in the place of a claim stays.
        """
        if not self._held:
            return
        unanswered: list[CacheKey] = []
        for item in items:
            is_held, outcome = self._held.pop(item, None) is not None, item.outcome
            if is_held and (outcome is None or outcome.failure or outcome.is_partial):
                unanswered.append(item.key)
        if unanswered:
            self._cache.release(unanswered)

    def _hold_and_start(self, items: Sequence[OpenItem]) -> None:
        """Start claimed items, and renew their claims until they end."""
        self._held.update(dict.fromkeys(items, self._loop.time()))
        if self._renewing is None:
            self._renewing = self._loop.call_later(self._pause(), self._renew)
        self._runner.start(items)

    async def _claim_and_start(self, left: dict[OpenItem, None]) -> None:
        """Start the items of `left` that this worker has to compute, and take them out of it.

        Settle items that other workers answer.
        """
        items = list(left)
        work = items[0].work

        def start(claimed: Sequence[OpenItem]) -> None:
            wanted = are_open(claimed)
            if len(wanted) < len(claimed):  # some were cancelled meanwhile
                self._cache.release([item.key for item in claimed if item.outcome is not None])
            if wanted:
                self._hold_and_start(wanted)
            for item in claimed:
                left.pop(item, None)

        with self._tracer.span("claim", parent=work.traceparent) as span:
            ours, theirs = await self._claim(items)
            span.set("sluicegate.items.ours", len(ours))
            span.set("sluicegate.items.theirs", len(theirs))
        start(ours)
        if not theirs:
            return
        now = self._loop.time
        began, pause = now(), _FIRST_PAUSE
        until = began + (work.deadline - began) * _SHARE_OF_TIME
        with self._tracer.span("wait for other workers", parent=work.traceparent):
            while theirs and now() < until:
                await asyncio.sleep(min(pause, until - now()))
                long_pause = min(_LONGEST_PAUSE, (now() - began) * _SHARE_OF_WAIT)
                pause = min(2 * pause, max(_SHORT_PAUSE, long_pause))
                await self._settle_answered(theirs)
                # The look-up has just read the claims of others: to ask for these costs nothing.
                ours, theirs = await self._claim(are_open(theirs))
                start(ours)
        start(theirs)

    async def _claim(self, items: Sequence[OpenItem]) -> tuple[list[OpenItem], list[OpenItem]]:
        """Return the items that this worker computes, and the items that other workers compute."""
        if not items:
            return [], []
        try:
            claims = await self._cache.claim(list(map(_key, items)), items[0].work.is_valid)
        except asyncio.CancelledError:
            self._cache.release(list(map(_key, items)))  # they may be on their way
            raise
        ours = [item for item, is_theirs in zip(items, claims, strict=True) if not is_theirs]
        theirs = [item for item, is_theirs in zip(items, claims, strict=True) if is_theirs]
        return ours, theirs

    async def _settle_answered(self, items: Sequence[OpenItem]) -> None:
        """Settle the items that others have answered by now."""
        found = await self._cache.lookup(list(map(_key, items)), items[0].work.is_valid)
        now = self._wall()
        settle(
            [
                (item, joined_outcome(hit_outcome(hit.entry, hit.tier, now)))
                for item, hit in zip(items, found, strict=True)
                if hit is not None
            ]
        )

    def _renew(self) -> None:
        """Renew the claims that have been held for long, while there are any."""
        pause = self._pause()
        self._renewing = self._loop.call_later(pause, self._renew) if self._held else None
        if self.lease <= 0:  # claims were switched off
            return
        before = self._loop.time() - pause
        keys: list[CacheKey] = []
        for item, since in self._held.items():
            if since > before:
                break
            keys.append(item.key)
        if keys:
            self._cache.renew(keys)

    def _pause(self) -> float:
        """Return the seconds until claims are renewed; shorter leases than that end before."""
        return max(_SHORTEST_PAUSE, self.lease * _RENEWED_EACH)
