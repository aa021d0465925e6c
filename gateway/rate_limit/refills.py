"""One call to Redis at a time for a tenant, and those who wait for it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence

from gateway.rate_limit.base import Charge, Decision

_HASTE = 0.05
"""Seconds that those wait who may run ahead."""
_HASTE_WHILE_LATE = 0.008
"""The same while Redis is known to be late; a miss waits twice, and may take 20 ms more."""
_QUICK = 0.02
"""Seconds within which an answer shows that Redis is late no more."""
_PATIENCE = 0.1
"""Seconds that callers wait for a silent Redis, or `_TIMES` as long as it took at worst lately."""
_TIMES = 4
_FADE = 0.97
_UNKNOWN = 0.5
_HELD_UP = 0.01


class InFlightRefills:
    """The calls under way, one a tenant, each with the decision it will bring or `None`."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Future[Decision | None]] = {}
        self._began: dict[str, float] = {}
        self._late: set[str] = set()
        # Seconds that the slowest answer took lately; a Redis that is not known yet is not judged.
        self._worst = _UNKNOWN
        self._is_redis_late = False

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._turns

    def get(self, tenant: str) -> asyncio.Future[Decision | None] | None:
        """Return the turn of `tenant` that is under way."""
        return self._turns.get(tenant)

    def under_way(self) -> list[asyncio.Future[Decision | None]]:
        """Return all turns."""
        return list(self._turns.values())

    def begin(self, tenant: str, now: float) -> asyncio.Future[Decision | None]:
        """Begin the turn of `tenant`, which has none."""
        turn = self._turns[tenant] = asyncio.get_running_loop().create_future()
        self._began[tenant] = now
        return turn

    def answered(self, duration: float) -> None:
        """Take note that Redis answered after so many seconds."""
        self._worst = max(duration, self._worst * _FADE)
        self._is_redis_late = duration > _QUICK

    def end(self, tenant: str, decision: Decision | None) -> None:
        """Tell everybody what the turn of `tenant` brought."""
        del self._began[tenant]
        self._late.discard(tenant)
        turn = self._turns.pop(tenant)
        if not turn.done():
            turn.set_result(decision)

    async def is_late(self, tenant: str, now: float, *, in_haste: bool) -> bool:
        """Wait for the turn of `tenant`, and say whether it takes too long."""
        turn = self._turns[tenant]
        if in_haste:
            patience = _HASTE_WHILE_LATE if self._is_redis_late else _HASTE
        else:
            patience = max(_PATIENCE, _TIMES * self._worst)
        await asyncio.wait((turn,), timeout=max(0.0, self._began[tenant] + patience - now))
        is_known = self._is_redis_late if in_haste else tenant in self._late
        if not turn.done() and not is_known:
            # A worker that was held up itself first reads what has arrived.
            await asyncio.wait((turn,), timeout=_HELD_UP)
        if turn.done():
            return False
        self._is_redis_late = True
        if not in_haste:
            self._late.add(tenant)
        return True


class RefillWaiter:
    """Units that callers wait for, by bucket."""

    def __init__(self) -> None:
        self._units: Counter[str] = Counter()

    def units(self, bucket: str) -> int:
        """Return how many units of `bucket` are waited for."""
        return self._units[bucket]

    @contextlib.contextmanager
    def counting(self, charges: Sequence[Charge]) -> Iterator[None]:
        """Count what `charges` ask for as long as the context lasts."""
        for charge in charges:
            self._units[charge.bucket] += charge.amount
        try:
            yield
        finally:
            for charge in charges:
                self._units[charge.bucket] -= charge.amount
                if not self._units[charge.bucket]:
                    del self._units[charge.bucket]


async def outcome(turn: asyncio.Future[Decision | None]) -> Decision | None:
    """Wait for a future that others wait for too: cancelling this leaves it alone."""
    await asyncio.wait((turn,))
    return turn.result()


async def or_let_go(
    turn: asyncio.Future[Decision | None], answer: Coroutine[None, None, Decision | None]
) -> Decision | None:
    """Return `answer`, which waits for `turn`; what that brings is given back if it is not it."""
    decision = None
    try:
        decision = await answer
    finally:
        # Also where the turn ended in the moment in which this was cancelled.
        if decision is None or not turn.done():
            turn.add_done_callback(_let_go)
    return decision


def _let_go(asked: asyncio.Future[Decision | None]) -> None:
    decision = asked.result()
    for hold in decision.holds if decision is not None else ():
        hold.settle(0)


def tenant_of(bucket: str) -> str:
    """Return the part of a bucket's name that all buckets of its tenant share."""
    return bucket[: bucket.index("}") + 1]
