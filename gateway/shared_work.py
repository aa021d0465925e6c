"""Lets equal items that several workers are asked for at once be computed by one of them.

Within a worker `gateway.cache.coalescing` does the same. Between workers a claim in Redis, under
the address of the answer, says that somebody computes it. It is read where the answer would have
been, so that whoever shares nothing waits for nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gateway.cache.entry import Found
from gateway.cache.key import CacheKey
from gateway.dispatch.work import Work, WorkItem, WorkRunner
from gateway.outcomes import hit_outcome
from gateway.types import ItemOutcome

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.016
_SHARE_OF_TIME = 0.5
"""Of what is left until the deadline: the rest is for computing it after all."""


class SharedCache(Protocol):
    """The part of the result cache that tells workers of each other."""

    def claim(self, keys: Sequence[CacheKey]) -> list[bool]:
        """Claim `keys`; say which another worker has claimed."""
        ...

    async def lookup(self, keys: Sequence[CacheKey]) -> list[Found | None]:
        """Return what is there by now."""
        ...


class SharedWork:
    """A runner that waits, `lease` seconds at most, for what another worker computes already.

    `lease` may be changed at any time.
    """

    def __init__(
        self,
        runner: WorkRunner,
        *,
        cache: SharedCache,
        lease: float,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stored times outlive a process
    ) -> None:
        self._runner = runner
        self._cache = cache
        self.lease = lease
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
        theirs = self._claimed_elsewhere(work)
        if not theirs:
            await self._runner.run(work, deadline=deadline, settle=settle, traceparent=traceparent)
            return

        async def run(items: Sequence[WorkItem]) -> None:
            if items:
                part = msgspec.structs.replace(work, items=tuple(items))
                await self._runner.run(
                    part, deadline=deadline, settle=settle, traceparent=traceparent
                )

        async def wait_then_run() -> None:
            await run(await self._wait(theirs, deadline, settle))

        waiting = {item.index for item in theirs}
        ours = [item for item in work.items if item.index not in waiting]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run(ours))
            tasks.create_task(wait_then_run())

    def _claimed_elsewhere(self, work: Work) -> list[WorkItem]:
        """Claim the items of `work`, and return those that another worker computes."""
        shared = [(item, item.key) for item in work.items if item.key is not None]
        claimed = self._cache.claim([key for _, key in shared])
        return [item for (item, _), other in zip(shared, claimed, strict=True) if other]

    async def _wait(
        self,
        items: list[WorkItem],
        deadline: float,
        settle: Callable[[int, ItemOutcome], None],
    ) -> list[WorkItem]:
        """Settle what others have computed in time, and return the rest."""
        now = asyncio.get_running_loop().time
        until = now() + min(self.lease, (deadline - now()) * _SHARE_OF_TIME)
        pause = _FIRST_PAUSE
        while items and now() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            found = await self._cache.lookup([item.key for item in items if item.key is not None])
            left = []
            for item, one in zip(items, found, strict=True):
                entry = one.entry if one is not None else None
                hit = hit_outcome(entry, "redis", self._wall(), None) if entry else None
                if hit is None:
                    left.append(item)
                else:
                    settle(item.index, hit)
            items = left
        return items
