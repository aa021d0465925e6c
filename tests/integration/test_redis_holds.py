"""What is held for work in Redis: quotas, places, reservations; and whoever held some may leave."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.rate_limit.base import Charge
from gateway.rate_limit.redis_limiter import RedisRateLimiter
from gateway.redis_connection import connect
from gateway.types import Rule
from tests.support.limits import Fleet, charge
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
MONTHLY = Rule(name="monthly", unit="items", capacity=10, period="month")
PLACES = Rule(name="running", unit="concurrent", capacity=3)
TOKENS = Rule(name="tokens", unit="tokens", capacity=100, window=10.0)


@pytest.fixture
async def redis(valkey: str, anyio_backend: str) -> AsyncIterator[Redis]:
    client = connect(valkey, timeout=5.0)
    yield client
    await client.aclose()


async def decide(limiter: RedisRateLimiter, charges: list[Charge]) -> bool:
    return (limiter.try_admit(charges) or await limiter.admit(charges)).allowed


async def test_a_quota_begins_anew_with_the_month_whoever_held_some(redis: Redis) -> None:
    fleet = Fleet(redis, workers=2)
    first, second = fleet.workers
    await fleet.advance(30 * 86_400.0)  # the 31st of January 1970
    assert await decide(first, [charge(9, of=MONTHLY)])
    assert not await decide(second, [charge(2, of=MONTHLY)])

    await fleet.advance(86_400.0 - fleet.clock() % 86_400.0 - 1.0)
    still = await decide(second, [charge(2, of=MONTHLY)])
    await fleet.advance(2.0)
    anew = await decide(second, [charge(10, of=MONTHLY)])
    await fleet.advance(27 * 86_400.0)

    assert (still, anew) == (False, True)
    assert not await decide(first, [charge(1, of=MONTHLY)])


async def test_the_places_of_a_worker_that_died_are_free_after_its_last_hold(redis: Redis) -> None:
    fleet = Fleet(redis, workers=2)
    await fleet.advance(1.0)
    dead, alive = fleet.workers
    place = [charge(1, of=PLACES, hold=True)]
    assert [await decide(dead, place) for _ in range(4)] == [True, True, True, False]
    assert not await decide(alive, place)

    await fleet.advance(2.1)

    assert [await decide(alive, place) for _ in range(4)] == [True, True, True, False]


async def test_what_is_held_for_work_stays_held_as_long_as_it_runs(redis: Redis) -> None:
    fleet = Fleet(redis, workers=2)
    await fleet.advance(1.0)
    first, second = fleet.workers
    running = await first.admit([charge(1, of=PLACES, hold=True)])
    reserved = await first.admit([charge(60, of=TOKENS, hold=True)])
    assert running.allowed
    assert reserved.allowed

    for _ in range(40):
        await fleet.advance(0.25)
        await first.give_back(idle=0.5)
    # In 10 s the bucket would be full again: what is held is not refilled behind the work's back.
    all_of_it = await decide(second, [charge(90, of=TOKENS)])
    places = [await decide(second, [charge(1, of=PLACES, hold=True)]) for _ in range(3)]
    reserved.holds[0].settle(10)
    await first.give_back(idle=0.0)
    await fleet.advance(0.2)
    after = await decide(second, [charge(90, of=TOKENS)])

    assert not all_of_it
    assert places == [True, True, False]
    assert after


async def test_what_is_held_for_a_caller_that_left_goes_back(redis: Redis) -> None:
    async with RedisRateLimiter(
        redis=redis, holder="worker", local_share=0.1, monotonic=time.monotonic
    ) as limiter:
        asking = asyncio.create_task(limiter.admit([charge(3, of=PLACES, hold=True)]))
        await asyncio.wait([asking], timeout=0)
        asking.cancel()
        await asyncio.wait([asking])

        await until(lambda: limiter.statistics().asked > 1)
        await until(lambda: limiter.statistics().reserved == 0)
        await until(lambda: limiter.statistics().leased == 0)
        assert (await limiter.admit([charge(3, of=PLACES, hold=True)])).allowed
