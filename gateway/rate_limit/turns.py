"""One call to Redis at a time for a tenant, and those who wait for it."""

import asyncio

from gateway.rate_limit.base import Decision


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
