"""The fleet's rate limiter against a real server: leases, their return, and Redis in trouble."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from redis.asyncio import Redis

from sluicegate.gateway.rate_limit.base import Charge
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.circuit_breaker import CircuitBreaker
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.types import CONCURRENT, Rule
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.clock import Clock
from tests.support.delaying_proxy import DelayingProxy
from tests.support.limits import Fleets, WorkerFleet, charge, most_over_the_limit, rule

LARGE = rule(10_000, window=60.0)
MONTHLY = Rule(name="monthly", unit="items", capacity=100, period="month")


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
async def test_most_requests_are_answered_without_a_round_trip(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1)
    (worker,) = fleet.workers

    for _ in range(1_000):
        await fleet.advance(0.001)
        assert await decide(worker, [charge(of=LARGE)])

    assert worker.statistics().asked < 50
    assert worker.statistics().admitted_by_lease > 950


@pytest.mark.anyio
async def test_a_lease_is_at_most_two_percent_of_the_capacity(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1)
    await fleet.advance(1.0)
    (worker,) = fleet.workers

    most = 0
    for _ in range(3_000):
        assert await decide(worker, [charge(of=LARGE)])
        most = max(most, worker.statistics().leased)

    assert 0 < most <= 200


@pytest.mark.anyio
async def test_a_lease_is_renewed_before_it_is_used_up(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1)
    (worker,) = fleet.workers
    asked = 0

    for _ in range(1_000):
        await fleet.advance(0.001)
        if worker.try_admit([charge(of=LARGE)]) is None:
            asked += 1
            assert (await worker.admit([charge(of=LARGE)])).allowed
        await until(lambda: not worker._calls)

    assert asked <= 3


@pytest.mark.anyio
async def test_what_is_leased_is_given_back_when_idle(fleets: Fleets) -> None:
    fleet = fleets.make(workers=2)
    await fleet.advance(1.0)
    first, second = fleet.workers
    small = rule(100)
    assert await decide(first, [charge(10, of=small)])
    assert first.statistics().leased == 2

    await first.give_back(idle=0.0)

    assert first.statistics().leased == 0
    assert await decide(second, [charge(90, of=small)])
    assert not await decide(second, [charge(1, of=small)])


@pytest.mark.anyio
async def test_leaving_gives_back_the_lease(redis: Redis) -> None:
    small = rule(100)

    async with make_limiter(redis, "first") as first:
        assert await decide(first, [charge(10, of=small)])
        assert first.statistics().leased == 2
    async with make_limiter(redis, "second") as second:
        assert await decide(second, [charge(90, of=small)])

    assert first.statistics().leased == 0
    assert first.statistics().lapsed == 0


@pytest.mark.anyio
async def test_an_idle_lease_goes_back_by_itself(redis: Redis) -> None:
    async with make_limiter(redis, "first") as first:
        assert await decide(first, [charge(10, of=rule(100))])

        await until(lambda: first.statistics().leased == 0)

        assert first.statistics().lapsed == 0


@pytest.mark.anyio
async def test_the_lease_of_a_worker_that_died_is_refilled_after_its_end(fleets: Fleets) -> None:
    fleet = fleets.make(workers=2)
    await fleet.advance(1.0)
    dead, alive = fleet.workers
    quick = rule(100, window=1.0)
    assert await decide(dead, [charge(1, of=quick)])
    await fleet.advance(1.0)
    while_leased = await decide(alive, [charge(100, of=quick)])

    await fleet.advance(2.0)

    assert not while_leased
    assert await decide(alive, [charge(100, of=quick)])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("limits", "left"),
    [
        # The unit a second of the higher limit, and 0.1 a second of the bucket itself.
        pytest.param([100], 500 + 100 + 10, id="lowered"),
        # 100 s later with 0.2 a second of each: the last limit is the higher one.
        pytest.param([100, 200], 500 + 100 + 10 + 20 + 20, id="then raised a little"),
    ],
)
async def test_what_is_beyond_a_limit_shrinks_at_the_higher_refill(
    fleets: Fleets, limits: list[int], left: int
) -> None:
    fleet = fleets.make(workers=1)
    (worker,) = fleet.workers
    await fleet.tell_time()
    full = rule(1000, window=1000.0)
    assert await decide(worker, [charge(500, of=full)])

    for limit in limits:
        await decide(worker, [charge(limit, of=rule(limit, window=1000.0))])
        await fleet.advance(100.0)

    assert not await decide(worker, [charge(left + 1, of=full)])
    assert await decide(worker, [charge(left, of=full)])


@pytest.mark.anyio
async def test_units_that_are_neither_spent_nor_given_back_are_counted(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1)
    (worker,) = fleet.workers
    await fleet.tell_time()
    assert await decide(worker, [charge(10, of=LARGE)])
    leased = worker.statistics().leased

    await fleet.advance(2.0)
    await worker.give_back(idle=0.0)

    assert leased > 0
    assert (worker.statistics().lapsed, worker.statistics().leased) == (leased, 0)


@pytest.mark.anyio
async def test_a_lease_is_not_spent_after_its_end(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1)
    await fleet.advance(1.0)
    (worker,) = fleet.workers
    assert await decide(worker, [charge(10, of=rule(100))])

    await fleet.advance(1.9)

    assert worker.try_admit([charge(of=rule(100))]) is None


@pytest.mark.anyio
async def test_a_lease_never_adds_to_a_full_bucket(fleets: Fleets) -> None:
    fleet = fleets.make(workers=2)
    await fleet.advance(1.0)
    first, second = fleet.workers
    quick = rule(100, window=1.0)
    assert await decide(first, [charge(1, of=quick)])
    leased = first.statistics().leased
    await fleet.advance(1.5)

    burst = sum([await decide(w, [charge(of=quick)]) for w in (first, second) for _ in range(150)])

    assert leased > 0
    assert burst <= 100


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    capacity=st.integers(1, 200),
    window=st.floats(0.5, 60.0),
    seed=st.integers(0, 2**32),
    pace=st.sampled_from([0.001, 0.02, 0.3]),
)
def test_no_window_has_more_than_capacity_and_refill(
    valkey_server: Valkey, capacity: int, window: float, seed: int, pace: float
) -> None:
    limit = rule(capacity, window=window)

    admitted = asyncio.run(run_fleet(valkey_server.url, limit, seed, pace))

    assert not admitted or most_over_the_limit(admitted, limit) <= 1e-3


async def run_fleet(url: str, limit: Rule, seed: int, pace: float) -> list[tuple[float, int]]:
    """Let three workers ask as chance has it; return what was admitted and when."""
    chance = random.Random(seed)
    async with connect(url, timeout=60.0) as redis, WorkerFleet(redis, workers=3) as fleet:
        await redis.flushall()
        admitted: list[tuple[float, int]] = []
        for _ in range(150):
            await fleet.advance(chance.random() * pace)
            if chance.random() < 0.05:
                await fleet.advance(chance.random() * 3.0)
            worker = chance.choice(fleet.workers)
            if chance.random() < 0.1:
                await worker.give_back(idle=chance.random())
            amount = chance.choice([1, 1, 1, 1, chance.randrange(1, limit.capacity + 1)])
            if await decide(worker, [charge(amount, of=limit)]):
                admitted.append((fleet.clock(), amount))
    return admitted


@pytest.mark.anyio
async def test_overloaded_workers_together_admit_nearly_all_that_is_allowed(fleets: Fleets) -> None:
    fleet = fleets.make(workers=4)
    chance = random.Random(3)
    limit = rule(100, window=6.0)
    admitted = 0

    for _ in range(1_500):
        await fleet.advance(0.02)
        admitted += await decide(chance.choice(fleet.workers), [charge(of=limit)])

    bound = 100 + 1_500 * 0.02 * limit.capacity / limit.window
    assert 0.98 * bound <= admitted <= bound


@pytest.mark.anyio
async def test_refusals_are_repeated_without_asking_again_at_once(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1)
    await fleet.advance(1.0)
    (worker,) = fleet.workers
    await decide(worker, [charge(100)])
    before = worker.statistics().asked

    refused = [await decide(worker, [charge()]) for _ in range(100)]

    assert not any(refused)
    assert worker.statistics().asked == before + 1


@pytest.mark.anyio
async def test_a_caller_that_is_cancelled_breaks_nothing(redis: Redis) -> None:
    async with make_limiter(redis, "worker") as limiter:
        callers = [asyncio.create_task(limiter.admit([charge()])) for _ in range(50)]
        await asyncio.wait(callers[:1], timeout=0)
        for caller in callers[::2]:
            caller.cancel()
        await asyncio.wait(callers)

        rest = sum([await decide(limiter, [charge()]) for _ in range(120)])

    admitted = sum(not caller.cancelled() for caller in callers)
    assert admitted == 25
    # The charge of the one that was asking may be lost, never given twice.
    assert 74 <= rest <= 75


@pytest.mark.anyio
async def test_a_place_is_not_lost_to_who_is_cancelled_as_it_is_granted(redis: Redis) -> None:
    places = Rule(name="jobs", unit=CONCURRENT, capacity=1, window=0.0)
    limiter = make_limiter(redis, "worker")
    async with limiter:
        caller = asyncio.create_task(limiter.admit([charge(of=places, is_reserved=True)]))
        await asyncio.wait((caller,), timeout=0)
        (turn,) = limiter._calls.values()
        turn.add_done_callback(lambda _: caller.cancel())
        await asyncio.wait((caller,))

        await until(lambda: limiter.statistics().reserved == 0)

    assert caller.cancelled()


@pytest.mark.anyio
async def test_without_redis_a_worker_admits_its_share_and_no_more(own_valkey: Valkey) -> None:
    redis = connect(own_valkey.url, timeout=0.5)
    async with make_limiter(redis, "worker", local_share=0.1) as limiter:
        assert await decide(limiter, [charge(of=rule(100, window=3_600.0))])
        leased = limiter.statistics().leased
        own_valkey.kill()

        admitted = sum([await decide(limiter, [charge()]) for _ in range(100)])

        assert admitted <= leased + 10
        assert admitted >= 10
        assert limiter.statistics().admitted_by_share == 10
        assert limiter.statistics().failures >= 5
        assert limiter.statistics().breaker == "open"
    await redis.aclose()


@pytest.mark.anyio
async def test_units_that_could_not_be_given_back_are_counted(own_valkey: Valkey) -> None:
    redis = connect(own_valkey.url, timeout=0.5)
    async with redis, WorkerFleet(redis, workers=1) as fleet:
        (worker,) = fleet.workers
        await fleet.tell_time()
        assert await decide(worker, [charge(10, of=LARGE)])
        leased = worker.statistics().leased

        own_valkey.kill()
        await worker.give_back(idle=0.0)

        assert leased > 0
        assert (worker.statistics().lapsed, worker.statistics().leased) == (leased, 0)


@pytest.mark.anyio
async def test_a_redis_that_hangs_at_the_first_call_is_not_asked_again(own_valkey: Valkey) -> None:
    redis = connect(own_valkey.url, timeout=0.1)
    async with make_limiter(redis, "worker", local_share=0.5) as limiter:
        own_valkey.pause()

        await limiter.admit([charge()])
        await until(lambda: limiter.statistics().failures == 1)

        own_valkey.resume()
        assert limiter.statistics().breaker == "open"
    await redis.aclose()


@pytest.mark.anyio
async def test_a_redis_that_hangs_holds_nobody_longer_than_the_timeout(own_valkey: Valkey) -> None:
    redis = connect(own_valkey.url, timeout=0.6)
    async with make_limiter(redis, "worker", local_share=0.5) as limiter:
        assert await decide(limiter, [charge(98)])
        await until(lambda: limiter.statistics().leased == 0)
        own_valkey.pause()

        decisions = await asyncio.gather(*[limiter.admit([charge(2)]) for _ in range(20)])

        own_valkey.resume()
    await redis.aclose()
    assert all(decision.allowed for decision in decisions)


@pytest.mark.anyio
async def test_a_redis_that_is_silent_holds_nobody_longer_than_a_tenth_of_a_second(
    own_valkey: Valkey,
) -> None:
    redis = connect(own_valkey.url, timeout=60.0)
    async with make_limiter(redis, "worker", local_share=0.5) as limiter:
        await answered(limiter, times=100)
        own_valkey.pause()

        async with asyncio.timeout(60.0):
            decisions = await asyncio.gather(*[limiter.admit([charge()]) for _ in range(20)])

        assert all(decision.allowed for decision in decisions)
        assert limiter.statistics().admitted_by_share == 20
        assert limiter.statistics().failures == 0  # nobody waited for the time-out
        own_valkey.resume()
    await redis.aclose()


@pytest.mark.anyio
async def test_a_silent_redis_refuses_only_after_the_time_out_where_the_share_is_used_up(
    own_valkey: Valkey,
) -> None:
    redis = connect(own_valkey.url, timeout=0.6)
    async with make_limiter(redis, "worker", local_share=0.1) as limiter:
        await answered(limiter, times=100)
        own_valkey.pause()
        asked = [asyncio.create_task(limiter.admit([charge(of=rule(20))])) for _ in range(5)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert limiter.statistics().failures == 0

        decisions = await asyncio.gather(*asked)

        assert sum(decision.allowed for decision in decisions) == 2
        assert limiter.statistics().admitted_by_share == 2
        assert limiter.statistics().breaker == "open"  # one time-out is enough
        own_valkey.resume()
    await redis.aclose()


@pytest.mark.anyio
async def test_a_redis_that_is_late_is_still_asked(own_valkey: Valkey) -> None:
    async with DelayingProxy(str(own_valkey.socket), delay=lambda: 0.06) as proxy:
        redis = connect(proxy.url, timeout=60.0)
        async with make_limiter(redis, "worker", local_share=0.5) as limiter:
            admitted = [await decide(limiter, [charge(of=rule(10))]) for _ in range(20)]

            assert admitted == [True] * 10 + [False] * 10
            assert limiter.statistics().admitted_by_share == 0
        await redis.aclose()


@pytest.mark.anyio
async def test_a_place_that_a_late_redis_grants_too_is_free_again(own_valkey: Valkey) -> None:
    place = charge(of=Rule(name="jobs", unit=CONCURRENT, capacity=1), is_reserved=True)
    redis = connect(own_valkey.url, timeout=60.0)
    async with make_limiter(redis, "worker") as limiter:
        await answered(limiter, times=100)
        own_valkey.pause()

        alone = await limiter.admit([place])
        own_valkey.resume()
        after = await limiter.admit([place])

        assert limiter.statistics().admitted_by_share == 1
        assert (alone.allowed, after.allowed) == (True, True)
    await redis.aclose()


@pytest.mark.anyio
async def test_units_reserved_while_redis_was_late_are_taken_later(own_valkey: Valkey) -> None:
    limit = rule(1_000, name="tokens", unit="tokens")
    redis = connect(own_valkey.url, timeout=60.0)
    async with make_limiter(redis, "worker", local_share=0.02) as limiter:
        assert await decide(limiter, [charge(1, of=limit)])
        own_valkey.pause()

        alone = await limiter.admit([charge(20, of=limit, is_reserved=True)])
        own_valkey.resume()
        rest = [await decide(limiter, [charge(amount, of=limit)]) for amount in (970, 25)]

        assert limiter.statistics().admitted_by_share == 1
        assert alone.allowed
        assert rest == [True, False]
    await redis.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        pytest.param(rule(100, window=3_600.0), 3_600, id="until it is full"),
        pytest.param(MONTHLY, 86_400, id="until the month ends"),
    ],
)
async def test_redis_remembers_a_used_bucket_as_long_as_it_matters(
    redis: Redis, fleets: Fleets, limit: Rule, seconds: int
) -> None:
    fleet = fleets.make(workers=1, clock=Clock(30 * 86_400.0))  # the 31st of January 1970
    await fleet.tell_time()

    assert await decide(fleet.workers[0], [charge(100, of=limit)])

    left = await redis.ttl(charge(of=limit).bucket)
    assert seconds <= left <= seconds + 5


@pytest.mark.anyio
async def test_while_one_call_finds_out_whether_redis_is_back_nobody_waits_for_it(
    own_valkey: Valkey,
) -> None:
    redis = connect(own_valkey.url, timeout=60.0)
    clock = Clock()
    breaker = CircuitBreaker(failures=1, slow=inf, open_for=1.0)
    limiter = RedisRateLimiter(
        redis=redis, holder="worker", local_share=0.5, monotonic=clock, breaker=breaker
    )
    breaker.failed(now=clock())
    clock.advance(1.0)
    own_valkey.pause()

    probe = asyncio.create_task(limiter.admit([charge()]))
    await until(lambda: limiter.statistics().asked == 1)
    async with asyncio.timeout(60.0):
        other = await limiter.admit([charge()])
    own_valkey.resume()

    assert (await probe).allowed
    assert other.allowed
    assert limiter.statistics().admitted_by_share == 1
    await redis.aclose()


async def answered(limiter: RedisRateLimiter, *, times: int) -> None:
    """Let `limiter` learn how fast Redis is."""
    for number in range(times):
        bucket = f"rl:{{other}}:t:{number}"
        assert await decide(limiter, [charge(bucket=bucket)])


def make_limiter(redis: Redis, holder: str, *, local_share: float = 0.1) -> RedisRateLimiter:
    return RedisRateLimiter(
        redis=redis, holder=holder, local_share=local_share, monotonic=time.monotonic
    )
