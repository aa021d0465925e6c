"""What is held for work in Redis: quotas, places, reservations; and whoever held some may leave."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from redis.asyncio import Redis

from sluicegate.gateway.rate_limit.base import Charge, UnitReservation
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.types import Rule
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.limits import Fleets, WorkerFleet, charge, most_over_the_limit, rule

MONTHLY = Rule(name="monthly", unit="items", capacity=10, period="month")
PLACES = Rule(name="running", unit="concurrent", capacity=3)
TOKENS = Rule(name="tokens", unit="tokens", capacity=100, window=10.0)


@pytest.fixture
async def redis(valkey: str, anyio_backend: str) -> AsyncIterator[Redis]:
    client = connect(valkey, timeout=60.0)
    yield client
    await client.aclose()


@pytest.fixture
async def fleets(redis: Redis) -> AsyncIterator[Fleets]:
    async with Fleets(redis) as made:
        yield made


async def decide(limiter: RedisRateLimiter, charges: list[Charge]) -> bool:
    return (limiter.try_admit(charges) or await limiter.admit(charges)).allowed


@pytest.mark.anyio
async def test_a_quota_begins_anew_with_the_month_whoever_held_some(fleets: Fleets) -> None:
    fleet = fleets.make(workers=2)
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


@pytest.mark.anyio
async def test_a_quota_that_begins_anew_owes_nothing_of_the_last_month(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1)
    (worker,) = fleet.workers
    high = Rule(name="monthly", unit="items", capacity=100, period="month")
    await fleet.advance(30 * 86_400.0)  # the 31st of January 1970
    assert await decide(worker, [charge(50, of=high)])
    assert not await decide(worker, [charge(1, of=MONTHLY)])

    await fleet.advance(2 * 86_400.0)

    assert await decide(worker, [charge(10, of=MONTHLY)])
    assert await decide(worker, [charge(90, of=high)])


@pytest.mark.anyio
async def test_the_places_of_a_worker_that_died_are_free_after_its_last_hold(
    fleets: Fleets,
) -> None:
    fleet = fleets.make(workers=2)
    await fleet.advance(1.0)
    dead, alive = fleet.workers
    place = [charge(1, of=PLACES, is_reserved=True)]
    assert [await decide(dead, place) for _ in range(4)] == [True, True, True, False]
    assert not await decide(alive, place)

    await fleet.advance(2.1)

    assert [await decide(alive, place) for _ in range(4)] == [True, True, True, False]


_HOLDER = """
import asyncio, sys, time

from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.client import connect
from tests.integration.test_redis_reservations import PLACES
from tests.support.limits import charge

async def main():
    redis = connect(sys.argv[1], timeout=60.0)
    limiter = RedisRateLimiter(
        redis=redis, holder="dead", local_share=0.1, monotonic=time.monotonic
    )
    async with limiter:
        for _ in range(3):
            decision = await limiter.admit([charge(1, of=PLACES, is_reserved=True)])
            print(decision.allowed, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.anyio
async def test_the_places_of_a_killed_worker_are_free_within_5_s(redis: Redis, valkey: str) -> None:
    place = charge(1, of=PLACES, is_reserved=True)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOLDER, valkey, stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    taken = [await worker.stdout.readline() for _ in range(3)]
    assert taken == [b"True\n"] * 3
    other = RedisRateLimiter(redis=redis, holder="alive", local_share=0.1, monotonic=time.monotonic)
    async with other:
        assert not await decide(other, [place])
        worker.kill()
        await worker.wait()
        seconds, microseconds = await redis.time()
        held: dict[Any, Any] = await redis.hgetall(place.bucket)
        ends = float(bytes(held[b"h:dead"]).partition(b":")[2])

        assert ends - (seconds + microseconds / 1e6) < 5.0
        async with asyncio.timeout(60.0):
            while not await decide(other, [place]):
                pass


@pytest.mark.anyio
async def test_what_is_held_for_work_stays_held_as_long_as_it_runs(fleets: Fleets) -> None:
    fleet = fleets.make(workers=2)
    await fleet.advance(1.0)
    first, second = fleet.workers
    running = await first.admit([charge(1, of=PLACES, is_reserved=True)])
    reserved = await first.admit([charge(60, of=TOKENS, is_reserved=True)])
    assert running.allowed
    assert reserved.allowed

    for _ in range(40):
        await fleet.advance(0.25)
        await first.give_back(idle=0.5)
    # In 10 s the bucket would be full again: what is held is not refilled behind the work's back.
    all_of_it = await decide(second, [charge(90, of=TOKENS)])
    places = [await decide(second, [charge(1, of=PLACES, is_reserved=True)]) for _ in range(3)]
    reserved.reservations[0].settle(10)
    await first.give_back(idle=0.0)
    await fleet.advance(0.2)
    after = await decide(second, [charge(90, of=TOKENS)])

    assert not all_of_it
    assert places == [True, True, False]
    assert after


@pytest.mark.anyio
async def test_what_is_held_for_a_caller_that_left_goes_back(redis: Redis) -> None:
    async with RedisRateLimiter(
        redis=redis, holder="worker", local_share=0.1, monotonic=time.monotonic
    ) as limiter:
        asking = asyncio.create_task(limiter.admit([charge(3, of=PLACES, is_reserved=True)]))
        await asyncio.wait([asking], timeout=0)
        asking.cancel()
        await asyncio.wait([asking])

        await until(lambda: limiter.statistics().asked > 1)
        await until(lambda: limiter.statistics().reserved == 0)
        await until(lambda: limiter.statistics().leased == 0)
        assert (await limiter.admit([charge(3, of=PLACES, is_reserved=True)])).allowed


@settings(max_examples=25, deadline=None)
@given(
    capacity=st.integers(2, 200),
    window=st.floats(0.5, 60.0),
    seed=st.integers(0, 2**32),
    pace=st.sampled_from([0.001, 0.02, 0.3]),
)
def test_no_window_of_work_takes_more_than_capacity_and_refill(
    valkey_server: Valkey, capacity: int, window: float, seed: int, pace: float
) -> None:
    limit = Rule(name="tokens", unit="tokens", capacity=capacity, window=window)

    taken = asyncio.run(run_work(valkey_server.url, limit, seed, pace))

    assert not taken or most_over_the_limit(taken, limit) <= 1e-3


async def run_work(url: str, limit: Rule, seed: int, pace: float) -> list[tuple[float, int]]:
    """Let three workers hold and settle as chance has it; return what was taken, and when."""
    chance = random.Random(seed)
    async with connect(url, timeout=60.0) as redis, WorkerFleet(redis, workers=3) as fleet:
        await redis.flushall()
        running: list[tuple[float, int, UnitReservation]] = []
        taken: list[tuple[float, int]] = []
        for _ in range(120):
            await fleet.advance(chance.random() * pace)
            if chance.random() < 0.05:
                await fleet.advance(chance.random() * 3.0)
            if chance.random() < 0.2:
                await chance.choice(fleet.workers).give_back(idle=chance.random())
            if running and chance.random() < 0.5:
                begun, amount, hold = running.pop(chance.randrange(len(running)))
                spent = chance.randrange(amount + 1)
                hold.settle(spent)
                taken.append((begun, spent))
            amount = chance.randrange(1, limit.capacity + 1)
            charges = [charge(amount, of=limit, is_reserved=True)]
            worker = chance.choice(fleet.workers)
            decision = worker.try_admit(charges) or await worker.admit(charges)
            if decision.allowed:
                running.append((fleet.clock(), amount, decision.reservations[0]))
    taken += [(begun, amount) for begun, amount, _ in running]
    return sorted(taken)


@pytest.mark.anyio
async def test_what_others_hold_of_a_limit_that_was_lowered_is_not_owed_of_the_new_one(
    fleets: Fleets,
) -> None:
    fleet = fleets.make(workers=2)
    one, other = fleet.workers
    await fleet.advance(1.0)
    high, low = [charge(of=rule(1000))], [charge(of=rule(2))]
    while other.statistics().leased < 10:
        await fleet.advance(0.001)
        assert await decide(other, high)

    refused = await one.admit(low)
    raised = await one.admit(high)

    assert not refused.allowed
    assert refused.retry_after <= 1800.0
    assert raised.policies[0].remaining >= 900
