"""Keeps one call for leases in flight per tenant, and counts the callers that wait for it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from gateway.rate_limit.base import Charge, Decision

_OVERDRAFT_WAIT = 0.05
"""Seconds that callers wait who may overdraw their leases."""
_OVERDRAFT_WAIT_WHILE_LATE = 0.008
"""The same while Redis is late; a miss waits twice, and may take 20 ms more."""
_ON_TIME = 0.02
"""Seconds within which an answer shows that Redis is no longer late."""
PATIENCE = 0.1
"""Seconds that callers wait for Redis at least; else `_TIMES` its worst recent answer."""
_TIMES = 4
_DECAY = 0.97
_INITIAL_WORST = 0.5
_GRACE = 0.01


LeaseCall = asyncio.Future[Decision | None]
"""The decision of a call in flight, `None` if the call fails."""


class LeaseCalls(dict[str, LeaseCall]):
    """Maps tenants to their call in flight."""

    def __init__(self, *, patience: float = PATIENCE) -> None:
        super().__init__()
        self._patience = patience
        self._began: dict[str, float] = {}
        self._late: set[str] = set()
        # Seconds of the slowest recent answer; long until the first ones have come.
        self._worst = _INITIAL_WORST
        self._is_redis_late = False

    def begin(self, tenant: str, now: float) -> LeaseCall:
        """Add a call of `tenant`, which has none in flight."""
        call = self[tenant] = asyncio.get_running_loop().create_future()
        self._began[tenant] = now
        return call

    def record_answer(self, duration: float) -> None:
        """Record that Redis answered after `duration` seconds."""
        self._worst = max(duration, self._worst * _DECAY)
        self._is_redis_late = duration > _ON_TIME

    def end(self, tenant: str, decision: Decision | None) -> None:
        """Set the result of the call of `tenant`."""
        del self._began[tenant]
        self._late.discard(tenant)
        call = self.pop(tenant)
        if not call.done():
            call.set_result(decision)

    async def is_late(self, tenant: str, now: float, *, can_overdraw: bool) -> bool:
        """Wait for the call of `tenant`; return whether it takes too long."""
        call = self[tenant]
        if can_overdraw:
            wait = _OVERDRAFT_WAIT_WHILE_LATE if self._is_redis_late else _OVERDRAFT_WAIT
        else:
            wait = max(self._patience, _TIMES * self._worst)
        await asyncio.wait((call,), timeout=max(0.0, self._began[tenant] + wait - now))
        was_late = self._is_redis_late if can_overdraw else tenant in self._late
        if not call.done() and not was_late:
            # A worker whose own loop was delayed first reads what has arrived.
            await asyncio.wait((call,), timeout=_GRACE)
        if call.done():
            return False
        self._is_redis_late = True
        if not can_overdraw:
            self._late.add(tenant)
        return True


class AwaitedUnits(Counter[str]):
    """Counts the units that callers wait for, by bucket."""

    @contextlib.contextmanager
    def counting(self, charges: Sequence[Charge]) -> Iterator[None]:
        """Count the units of `charges` while the context lasts."""
        for charge in charges:
            self[charge.bucket] += charge.amount
        try:
            yield
        finally:
            for charge in charges:
                self[charge.bucket] -= charge.amount
                if not self[charge.bucket]:
                    del self[charge.bucket]


def give_back_holds(call: LeaseCall) -> None:
    """Give back what the call holds for a caller that has left."""
    decision = call.result()
    for hold in decision.holds if decision is not None else ():
        hold.settle(0)


def tenant_of(bucket: str) -> str:
    """Return the prefix of a bucket's name that all buckets of its tenant have."""
    return bucket[: bucket.index("}") + 1]
