"""A bucket whose capacity is a region's part of a limit: another part fills it no faster."""

import pytest
from redis.asyncio import Redis

from gateway.rate_limit.base import Decision
from gateway.redis_connection import connect
from gateway.types import RegionalRule, Rule
from tests.support.limits import Fleet, charge

pytestmark = pytest.mark.anyio
WHOLE = Rule(name="hour", unit="requests", capacity=1000, window=1000.0)


class Parts:
    """Shares of a limit that a test sets; see `LimitShares`."""

    def __init__(self, capacity: int, *, start: int | None = None) -> None:
        self.capacity = capacity
        self.start = capacity if start is None else start

    def rule(self, bucket: str, rule: Rule) -> Rule:
        return RegionalRule(
            name=rule.name,
            unit=rule.unit,
            capacity=self.capacity,
            window=rule.window,
            whole=rule.limit,
            start=min(self.start, self.capacity),
        )

    def asked(self, bucket: str, rule: Rule, units: int, *, level: float = 0.0) -> None:
        pass


async def take(fleet: Fleet, amount: int) -> Decision:
    return await fleet.workers[0].admit([charge(amount, of=WHOLE)])


@pytest.fixture
async def redis(valkey: str) -> Redis:
    return connect(valkey, timeout=5.0)


async def test_what_refilled_before_a_larger_part_refilled_at_the_smaller_ones_rate(
    redis: Redis,
) -> None:
    parts = Parts(100)
    fleet = Fleet(redis, workers=1, shares=[parts])
    await fleet.tell_time()
    assert (await take(fleet, 100)).allowed

    parts.capacity = 900
    await fleet.advance(100.0)

    assert not (await take(fleet, 11)).allowed
    assert (await take(fleet, 10)).allowed
    await fleet.advance(100.0)
    assert (await take(fleet, 90)).allowed
    await redis.aclose()


async def test_a_smaller_part_takes_away_what_was_left(redis: Redis) -> None:
    parts = Parts(900)
    fleet = Fleet(redis, workers=1, shares=[parts])
    await fleet.tell_time()
    assert (await take(fleet, 100)).allowed

    parts.capacity = 50
    refused = await take(fleet, 51)

    assert not refused.allowed
    assert not refused.impossible
    assert (await take(fleet, 60)).allowed is False
    assert (await take(fleet, 50)).allowed
    await redis.aclose()


async def test_a_bucket_that_is_not_there_begins_where_the_region_says(redis: Redis) -> None:
    fleet = Fleet(redis, workers=1, shares=[Parts(900, start=30)])
    await fleet.tell_time()

    assert not (await take(fleet, 31)).allowed
    assert (await take(fleet, 30)).allowed
    await redis.aclose()


async def test_only_more_than_the_whole_limit_is_impossible(redis: Redis) -> None:
    fleet = Fleet(redis, workers=1, shares=[Parts(0)])
    await fleet.tell_time()

    beyond_part, beyond_all = await take(fleet, 1000), await take(fleet, 1001)

    assert not beyond_part.allowed
    assert not beyond_part.impossible
    assert beyond_part.retry_after <= WHOLE.window
    assert beyond_all.impossible
    await redis.aclose()
