"""One call to Redis at a time for a tenant, and those who wait for it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from gateway.rate_limit.base import Charge, Decision


class Waiting:
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


def let_go(asked: asyncio.Future[Decision | None]) -> None:
    """Give back what was held for somebody who did not wait for it."""
    decision = asked.result()
    for hold in decision.holds if decision is not None else ():
        hold.settle(0)


def tenant_of(bucket: str) -> str:
    """Return the part of a bucket's name that all buckets of its tenant share."""
    return bucket[: bucket.index("}") + 1]
