"""Two gateway regions with a Redis each: every window over both of them is within the limit."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.regional_limits.limits import DividedLimits
from sluicegate.gateway.types import CONCURRENT, Rule
from tests.support.clock import Clock
from tests.support.ledgers import ledger_url
from tests.support.limits import WorkerFleet, charge, most_over_the_limit

pytestmark = pytest.mark.anyio
LIMIT = Rule(name="minute", unit="requests", capacity=200, window=20.0)
HOURLY = Rule(name="hour", unit="requests", capacity=400, window=3600.0)
QUOTA = Rule(name="month", unit="requests", capacity=500, period="month")
PLACES = Rule(name="places", unit=CONCURRENT, capacity=12)
REGIONS, WORKERS = 2, 2
LEASE = 30.0


class Scene:
    """Regions of workers over one ledger, in a time that a test makes pass."""

    def __init__(self, ledger: Ledger, clock: Clock, redises: Sequence[Redis]) -> None:
        self._ledger = ledger
        self.clock = clock
        self.shares = [
            [
                DividedLimits(
                    region=f"region-{region}",
                    worker=f"{region}/{worker}",
                    alone=lambda: 0.0,
                    monotonic=clock,
                    wall=clock,
                )
                for worker in range(WORKERS)
            ]
            for region in range(REGIONS)
        ]
        self.fleets = [
            WorkerFleet(redis, workers=WORKERS, clock=clock, shares=shares)
            for redis, shares in zip(redises, self.shares, strict=True)
        ]
        self._next_report = 0.0

    def workers(self, region: int) -> list[RedisRateLimiter]:
        return self.fleets[region].workers

    async def advance(self, seconds: float, *, cut: frozenset[int] = frozenset()) -> None:
        """Let time pass; regions that are not `cut` report each second."""
        self.clock.advance(seconds)
        for fleet in self.fleets:
            await fleet.tell_time()
        if self.clock() >= self._next_report:
            self._next_report = self.clock() + 1.0
            self.report(cut=cut)

    def report(self, *, cut: frozenset[int] = frozenset()) -> None:
        for region, workers in enumerate(self.shares):
            for shares in workers if region not in cut else ():
                sent_at = self.clock()
                answer = self._ledger.shares.report(shares.report(), lease=LEASE, longest=10.0)
                shares.apply(answer, sent_at=sent_at)

    async def give_back(self) -> None:
        for fleet in self.fleets:
            for worker in fleet.workers:
                await worker.give_back(idle=0.5)


@pytest.fixture
async def scene(tmp_path: Path, valkey: str) -> AsyncIterator[Scene]:
    clock = Clock(1_790_000_000.0)
    async with AsyncExitStack() as stack:
        redises = [connect(f"{valkey}?db={region}", timeout=60.0) for region in range(REGIONS)]
        for redis in redises:
            stack.push_async_callback(redis.aclose)
        ledger = stack.enter_context(
            Ledger.create(ledger_url(tmp_path), clock=lambda: int(clock() * 1_000_000_000))
        )
        scene = Scene(ledger, clock, redises)
        for fleet in scene.fleets:
            await stack.enter_async_context(fleet)
        for _ in range(12):
            await scene.advance(1.0)
        yield scene


@pytest.mark.parametrize("seed", range(2))
async def test_no_window_over_both_regions_has_more_than_the_limit(scene: Scene, seed: int) -> None:
    """Demand wanders between regions, pauses and comes in bursts; a region is cut off at times."""
    chooser = random.Random(seed)
    admitted: list[tuple[float, int]] = []
    cut: frozenset[int] = frozenset()
    weight = 0.5

    for step in range(250):
        if step % 50 == 0:
            weight = chooser.choice([0.05, 0.3, 0.5, 0.95])
            cut = frozenset(chooser.choice([[], [], [0], [1], [0, 1]]))
        for region in range(REGIONS):
            if chooser.random() < (weight if region else 1 - weight):
                worker = chooser.choice(scene.workers(region))
                for _ in range(chooser.choice([1, 2, 20])):
                    decision = await worker.admit([charge(of=LIMIT)])
                    if decision.allowed:
                        admitted.append((scene.clock(), 1))
        await scene.advance(chooser.choice([0.02, 0.1, 0.1, 0.3, 1.5]), cut=cut)
        if step % 5 == 0:
            await scene.give_back()

    assert most_over_the_limit(admitted, LIMIT) <= 1e-6
    assert len(admitted) > LIMIT.capacity * 2


async def test_a_share_that_moves_is_not_used_twice(scene: Scene) -> None:
    """Of an hour's limit nearly nothing has come back when the other region has the share."""
    admitted: list[tuple[float, int]] = []

    for region in (0, 1, 0):
        for _ in range(90):
            for _ in range(5):
                decision = await scene.workers(region)[0].admit([charge(4, of=HOURLY)])
                if decision.allowed:
                    admitted.append((scene.clock(), 4))
            await scene.advance(0.5)
        rule = scene.shares[region][0].rule("rl:{acme}:t:hour", HOURLY)
        assert rule.capacity > 0.8 * HOURLY.capacity

    assert most_over_the_limit(admitted, HOURLY) <= 1e-6
    assert 4 * len(admitted) > HOURLY.capacity / 2


async def test_a_share_that_falls_and_rises_again_is_not_refilled_for_the_time_between(
    scene: Scene,
) -> None:
    """The other region uses the share meanwhile."""
    admitted: list[tuple[float, int]] = []

    async def spend(region: int, times: int) -> None:
        for _ in range(times):
            decision = await scene.workers(region)[0].admit([charge(of=HOURLY)])
            if decision.allowed:
                admitted.append((scene.clock(), 1))

    for _ in range(int(HOURLY.window / 20)):  # both buckets fill
        await scene.advance(20.0)
    await spend(0, 200)
    await spend(1, 200)
    for _ in range(300):
        await spend(1, 2)
        await scene.advance(1.0)
    fallen = scene.shares[0][0].rule("rl:{acme}:t:hour", HOURLY).capacity
    for _ in range(100):
        await scene.advance(1.0)
    await spend(0, 30)
    await spend(1, 30)

    assert fallen < 0.1 * HOURLY.capacity
    assert scene.shares[0][0].rule("rl:{acme}:t:hour", HOURLY).capacity == 200
    assert most_over_the_limit(admitted, HOURLY) <= 1e-6
    assert len(admitted) > HOURLY.capacity


async def test_after_an_outage_of_the_ledger_the_first_region_has_what_it_had(
    scene: Scene,
) -> None:
    """The other region spent its share just before the outage."""
    admitted: list[tuple[float, int]] = []

    async def spend(region: int) -> None:
        for _ in range(HOURLY.capacity):
            decision = await scene.workers(region)[0].admit([charge(of=HOURLY)])
            if decision.allowed:
                admitted.append((scene.clock(), 1))

    await spend(0)
    for _ in range(int(LEASE) + 3):
        await scene.advance(1.0, cut=frozenset([0, 1]))
    await scene.advance(1.0, cut=frozenset([0]))
    await spend(1)

    assert most_over_the_limit(admitted, HOURLY) <= 1e-6
    assert len(admitted) > 0.45 * HOURLY.capacity


async def test_demand_in_one_region_gets_nearly_all(scene: Scene) -> None:
    admitted = 0

    for step in range(60 * 5):
        for worker in scene.workers(0):
            for _ in range(2):
                decision = await worker.admit([charge(2, of=LIMIT)])
                if step >= 150:
                    admitted += 2 * decision.allowed
        await scene.advance(0.2)

    refill = LIMIT.capacity / LIMIT.window * 30
    assert 0.9 * refill <= admitted <= refill


async def test_a_lost_regions_share_goes_to_the_other_after_the_stated_time(scene: Scene) -> None:
    first = scene.clock()
    has_all = 0.0

    while not has_all:
        await scene.advance(1.0, cut=frozenset([1]))
        rule = scene.shares[0][0].rule("rl:{acme}:t:minute", LIMIT)
        has_all = scene.clock() if rule.capacity == LIMIT.capacity else 0.0
        if scene.clock() < first + LEASE:
            assert rule.capacity < LIMIT.capacity

    assert has_all - first <= LEASE + 2.0 + 2.0
    refused = await scene.workers(1)[0].admit([charge(of=LIMIT)])
    assert not refused.allowed
    assert not refused.impossible


async def test_a_quota_is_admitted_once_over_both_regions(scene: Scene) -> None:
    admitted = [0, 0]

    for _ in range(120):
        for region in range(REGIONS):
            for worker in scene.workers(region):
                decision = await worker.admit([charge(3, of=QUOTA)])
                admitted[region] += 3 * decision.allowed
        await scene.advance(0.4)
        await scene.give_back()

    assert QUOTA.capacity - 6 <= sum(admitted) <= QUOTA.capacity
    assert min(admitted) > QUOTA.capacity / 4


async def test_work_at_a_time_is_within_the_cap_over_both_regions(scene: Scene) -> None:
    """Work lasts up to the longest deadline, and demand moves from one region to the other."""
    chooser = random.Random(1)
    running: list[tuple[float, list[object]]] = []
    most = 0

    for step in range(300):
        region = 0 if step % 150 < 75 else 1
        worker = chooser.choice(scene.workers(region))
        for _ in range(3):
            decision = await worker.admit([charge(of=PLACES, is_reserved=True)])
            if decision.allowed:
                running.append(
                    (scene.clock() + chooser.random() * 9.0, list(decision.reservations))
                )
        most = max(most, len(running))
        await scene.advance(0.3)
        for _, reservations in [one for one in running if one[0] <= scene.clock()]:
            for hold in reservations:
                hold.settle(0)  # type: ignore[attr-defined]
        running = [one for one in running if one[0] > scene.clock()]
        await scene.give_back()

    assert 0.5 * PLACES.capacity < most <= PLACES.capacity
