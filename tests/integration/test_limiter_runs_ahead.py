"""A tenant far from its limits does not wait for a late Redis, and stays within them."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.client import connect
from testing.valkey import Valkey
from tests.support.delaying_proxy import DelayingProxy
from tests.support.limits import charge, rule

pytestmark = pytest.mark.anyio
_RULE = rule(1_000, window=1_000_000.0)


class Late:
    """A limiter whose Redis answers after `delay[0]` seconds."""

    def __init__(self, limiter: RedisRateLimiter, delay: list[float]) -> None:
        self.limiter = limiter
        self.delay = delay

    async def admits(self, amount: int = 1) -> bool:
        """Ask for units of 1,000."""
        charges = [charge(amount, of=_RULE)]
        return (self.limiter.try_admit(charges) or await self.limiter.admit(charges)).allowed


@pytest.fixture
async def late(anyio_backend: str) -> AsyncIterator[Late]:
    delay = [0.0]
    with Valkey() as server:
        async with DelayingProxy(str(server.socket), delay=lambda: delay[0]) as proxy:
            redis = connect(proxy.url, timeout=60.0)
            async with RedisRateLimiter(
                redis=redis,
                holder="worker",
                local_share=0.5,
                monotonic=time.monotonic,
                patience=60.0,
            ) as limiter:
                yield Late(limiter, delay)
            await redis.aclose()


async def test_who_is_far_from_the_limit_does_not_wait_and_pays_afterwards(late: Late) -> None:
    assert await late.admits()
    late.delay[0] = 0.5
    async with asyncio.timeout(60.0):
        ahead = [await late.admits() for _ in range(10)]
    late.delay[0] = 0.0

    rest = [await late.admits() for _ in range(1_000)]

    assert all(ahead)
    assert late.limiter.statistics().admitted_by_share >= 10
    assert 1 + sum(ahead) + sum(rest) == 1_000


async def test_who_is_near_the_limit_waits_for_what_redis_says(late: Late) -> None:
    assert await late.admits(600)
    late.delay[0] = 0.06

    admitted = sum(await asyncio.gather(*[late.admits() for _ in range(500)]))

    assert late.limiter.statistics().admitted_by_share == 0
    assert admitted == 400
