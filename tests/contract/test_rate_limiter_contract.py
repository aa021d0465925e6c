"""What every rate limiter promises."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gateway.rate_limit.base import Charge, Decision, RateLimiter
from gateway.rate_limit.memory import MemoryRateLimiter
from gateway.rate_limit.redis_limiter import RedisRateLimiter
from gateway.redis_connection import connect
from tests.support.limits import charge, rule
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "redis"])
async def limiter(
    request: pytest.FixtureRequest, valkey: str, anyio_backend: str
) -> AsyncIterator[RateLimiter]:
    if request.param == "memory":
        yield MemoryRateLimiter(monotonic=time.monotonic)
        return
    redis = connect(valkey, timeout=5.0)
    async with RedisRateLimiter(
        redis=redis, holder="worker", local_share=0.1, monotonic=time.monotonic
    ) as limiter:
        yield limiter
    await redis.aclose()


async def decide(limiter: RateLimiter, charges: list[Charge]) -> Decision:
    return limiter.try_admit(charges) or await limiter.admit(charges)


async def test_exactly_the_capacity_is_admitted_at_once(limiter: RateLimiter) -> None:
    decisions = [await decide(limiter, [charge(of=rule(100))]) for _ in range(150)]

    assert [decision.allowed for decision in decisions] == [True] * 100 + [False] * 50


async def test_exactly_the_capacity_is_admitted_to_many_at_once(limiter: RateLimiter) -> None:
    decisions = await asyncio.gather(*[limiter.admit([charge(of=rule(100))]) for _ in range(150)])

    assert sum(decision.allowed for decision in decisions) == 100


async def test_remaining_counts_down_to_nothing(limiter: RateLimiter) -> None:
    decisions = [await decide(limiter, [charge(of=rule(5))]) for _ in range(6)]

    assert [one.policies[0].remaining for one in decisions] == [4, 3, 2, 1, 0, 0]


async def test_all_charges_are_taken_or_none(limiter: RateLimiter) -> None:
    tenant, key = rule(10, name="minute"), rule(2, name="key_minute")
    both = [charge(of=tenant), charge(of=key, bucket="rl:{acme}:k:1:key_minute")]
    allowed = [(await decide(limiter, both)).allowed for _ in range(6)]

    refused = await decide(limiter, both)
    rest = [(await decide(limiter, [charge(of=tenant)])).allowed for _ in range(9)]

    assert allowed == [True, True, False, False, False, False]
    assert refused.violated == key
    assert [one.rule for one in refused.policies] == [tenant, key]
    assert rest == [True] * 8 + [False]


async def test_a_refusal_says_how_long_to_wait(limiter: RateLimiter) -> None:
    hourly = rule(60, window=3_600.0)
    await decide(limiter, [charge(60, of=hourly)])

    decision = await decide(limiter, [charge(of=hourly)])

    assert not decision.allowed
    assert decision.violated == hourly
    assert decision.retry_after == pytest.approx(60.0, abs=2.0)
    assert decision.policies[0].reset == pytest.approx(60.0, abs=2.0)
    assert not decision.impossible


async def test_more_than_a_bucket_holds_is_impossible_and_takes_nothing(
    limiter: RateLimiter,
) -> None:
    decision = await decide(limiter, [charge(101, of=rule(100))])

    assert not decision.allowed
    assert decision.impossible
    assert (await decide(limiter, [charge(100, of=rule(100))])).allowed


async def test_a_smaller_request_passes_where_a_larger_was_refused(limiter: RateLimiter) -> None:
    await decide(limiter, [charge(90, of=rule(100))])

    large = await decide(limiter, [charge(11, of=rule(100))])
    small = await decide(limiter, [charge(10, of=rule(100))])

    assert (large.allowed, small.allowed) == (False, True)


async def test_tenants_do_not_share_buckets(limiter: RateLimiter) -> None:
    await decide(limiter, [charge(100)])

    assert not (await decide(limiter, [charge()])).allowed
    assert (await decide(limiter, [charge(bucket="rl:{globex}:t:minute")])).allowed


async def test_nothing_to_charge_is_admitted(limiter: RateLimiter) -> None:
    assert (await decide(limiter, [])).allowed
    assert (await decide(limiter, [charge(0)])).allowed


async def test_a_bucket_refills(limiter: RateLimiter) -> None:
    quick = rule(10, window=0.5)
    assert (await decide(limiter, [charge(10, of=quick)])).allowed
    assert not (await decide(limiter, [charge(of=quick)])).allowed

    await until(lambda: limiter.statistics().leased == 0)
    for _ in range(1_000):
        decision = await decide(limiter, [charge(of=quick)])
        if decision.allowed:
            return
        await until_monotonic(time.monotonic() + decision.retry_after)
    pytest.fail("the bucket did not refill")


async def until_monotonic(moment: float) -> None:
    await until(lambda: time.monotonic() >= moment)


async def test_decisions_are_counted(limiter: RateLimiter) -> None:
    for _ in range(12):
        await decide(limiter, [charge(of=rule(10))])

    counts = limiter.statistics()
    admitted = counts.admitted_by_lease + counts.admitted_by_redis + counts.admitted_by_share
    assert (admitted, counts.refused) == (10, 2)
