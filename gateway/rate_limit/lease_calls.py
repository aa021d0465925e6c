"""Tracks each tenant's call to Redis for leases, and the units that callers wait for.

A tenant has at most one call in flight.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from sluicegate.gateway.rate_limit.base import Charge, Decision

_OVERDRAFT_WAIT = 0.05
"""Seconds that a caller waits if it may overdraw its leases."""
_OVERDRAFT_WAIT_WHILE_LATE = 0.008
"""Seconds that a caller waits if it may overdraw its leases, while Redis responds late.

A cache miss waits twice: once for the request, and once before the call to a backend. Both waits
together should take at most 20 ms.
"""
_ON_TIME = 0.02
"""A response of Redis within this many seconds shows that Redis is no longer late."""
PATIENCE = 0.1
"""Minimum seconds that a caller waits if it may not overdraw its leases. If four times the duration
of the slowest recent response is longer, the caller waits for that time."""
_TIMES = 4
_DECAY = 0.97
_INITIAL_WORST = 0.5
_GRACE = 0.01


LeaseCall = asyncio.Future[Decision | None]
"""The decision of a call in flight; `None` if the call fails."""


class LeaseCalls(dict[str, LeaseCall]):
    """Maps each tenant to its call in flight."""

    def __init__(self, *, patience: float = PATIENCE) -> None:
        super().__init__()
        self._patience = patience
        self._began: dict[str, float] = {}
        self._late: set[str] = set()
        # Seconds of the slowest recent response. The value is large until Redis has responded once.
        self._worst = _INITIAL_WORST
        self._is_redis_late = False

    def begin(self, tenant: str, now: float) -> LeaseCall:
        """Add a call for `tenant`, which must have no call in flight."""
        call = self[tenant] = asyncio.get_running_loop().create_future()
        self._began[tenant] = now
        return call

    def record_answer(self, duration: float) -> None:
        """Record that Redis responded after `duration` seconds."""
        self._worst = max(duration, self._worst * _DECAY)
        self._is_redis_late = duration > _ON_TIME

    def end(self, tenant: str, decision: Decision | None) -> None:
        """End the call for `tenant` with the result `decision`."""
        del self._began[tenant]
        self._late.discard(tenant)
        call = self.pop(tenant)
        if not call.done():
            call.set_result(decision)

    async def is_late(self, tenant: str, now: float, *, can_overdraw: bool) -> bool:
        """Wait for the call in flight for `tenant`; return whether the call takes too long."""
        call = self[tenant]
        if can_overdraw:
            wait = _OVERDRAFT_WAIT_WHILE_LATE if self._is_redis_late else _OVERDRAFT_WAIT
        else:
            wait = max(self._patience, _TIMES * self._worst)
        await asyncio.wait((call,), timeout=max(0.0, self._began[tenant] + wait - now))
        was_late = self._is_redis_late if can_overdraw else tenant in self._late
        if not call.done() and not was_late:
            # If this worker's event loop was delayed, the response may have arrived without being
            # read.
            await asyncio.wait((call,), timeout=_GRACE)
        if call.done():
            return False
        self._is_redis_late = True
        if not can_overdraw:
            self._late.add(tenant)
        return True


class AwaitedUnits(Counter[str]):
    """Counts, for each bucket, the units that callers wait for."""

    @contextlib.contextmanager
    def counting(self, charges: Sequence[Charge]) -> Iterator[None]:
        """Include the units of `charges` while the context lasts."""
        for charge in charges:
            self[charge.bucket] += charge.amount
        try:
            yield
        finally:
            for charge in charges:
                self[charge.bucket] -= charge.amount
                if not self[charge.bucket]:
                    del self[charge.bucket]


def give_back_reservations(call: LeaseCall) -> None:
    """Give back the units that `call` reserved for a caller that no longer waits."""
    decision = call.result()
    for reservation in decision.reservations if decision is not None else ():
        reservation.settle(0)


def tenant_of(bucket: str) -> str:
    """Return the prefix of `bucket` that all buckets of the tenant have."""
    return bucket[: bucket.index("}") + 1]
