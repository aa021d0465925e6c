"""A bucket whose capacity is a region's part of a limit: another part fills it no faster."""

from collections.abc import AsyncIterator
from math import inf

import pytest

from sluicegate.gateway.periods import PERIODS
from sluicegate.gateway.rate_limit.base import Decision
from sluicegate.gateway.rate_limit.bucket import RegionalRule
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.types import Rule
from tests.support.clock import Clock
from tests.support.limits import Fleets, WorkerFleet, charge

pytestmark = pytest.mark.anyio
QUOTA = Rule(name="month", unit="requests", capacity=1000, period="month")
WHOLE = Rule(name="hour", unit="requests", capacity=1000, window=1000.0)


class Parts:
    """Shares of a limit that a test sets; see `RegionalLimits`."""

    def __init__(self, capacity: int, *, start: int | None = None) -> None:
        self.capacity = capacity
        self.start = capacity if start is None else start
        self.grown = inf
        self.former: tuple[tuple[float, float], ...] = ()

    def rule(self, bucket: str, rule: Rule) -> Rule:
        return RegionalRule(
            name=rule.name,
            unit=rule.unit,
            capacity=self.capacity,
            window=rule.window,
            period=rule.period,
            full_limit=rule.limit,
            unknown_level=min(self.start, self.capacity),
            grown_for=self.grown,
            former_shares=self.former,
        )

    def record_demand(
        self, bucket: str, rule: Rule, units: int, *, level: float = 0.0, ends: float = 0.0
    ) -> None:
        pass


async def take(fleet: WorkerFleet, amount: int, *, of: Rule = WHOLE) -> Decision:
    return await fleet.workers[0].admit([charge(amount, of=of)])


@pytest.fixture
async def fleets(valkey: str) -> AsyncIterator[Fleets]:
    async with connect(valkey, timeout=60.0) as redis, Fleets(redis) as made:
        yield made


async def test_what_refilled_before_a_larger_part_refilled_at_the_smaller_ones_rate(
    fleets: Fleets,
) -> None:
    parts = Parts(100)
    fleet = fleets.make(workers=1, shares=[parts])
    await fleet.tell_time()
    assert (await take(fleet, 100)).allowed

    parts.capacity = 900
    await fleet.advance(100.0)

    assert not (await take(fleet, 11)).allowed
    assert (await take(fleet, 10)).allowed
    await fleet.advance(100.0)
    assert (await take(fleet, 90)).allowed


async def test_a_bucket_that_is_left_alone_while_its_part_shrinks_and_grows_is_no_fuller(
    fleets: Fleets,
) -> None:
    parts = Parts(900)
    fleet = fleets.make(workers=1, shares=[parts])
    await fleet.tell_time()
    assert (await take(fleet, 100)).allowed
    await fleet.advance(900.0)

    # It had 100 meanwhile, and 900 again 50 seconds ago: others have had the rest.
    parts.start, parts.grown = 100 + 45, 50.0

    assert not (await take(fleet, 146)).allowed
    assert (await take(fleet, 145)).allowed
    parts.start, parts.grown = 100 + 90, 100.0
    await fleet.advance(50.0)
    assert not (await take(fleet, 46)).allowed
    assert (await take(fleet, 45)).allowed  # known since the part grew: it goes on as it was


async def test_a_bucket_refills_at_the_parts_that_the_region_had_since_its_last_use(
    fleets: Fleets,
) -> None:
    parts = Parts(900)
    fleet = fleets.make(workers=1, shares=[parts])
    await fleet.tell_time()
    assert (await take(fleet, 900)).allowed

    # It had 900 for 20 seconds more, 100 for 200 seconds, 500 for 50, and 900 for the last 10.
    parts.former, parts.grown = ((0.9, inf), (0.1, 200.0), (0.5, 50.0)), 10.0
    parts.start = 100 + 25 + 9
    await fleet.advance(280.0)

    assert not (await take(fleet, 73)).allowed
    assert (await take(fleet, 18 + 20 + 25 + 9)).allowed


async def test_a_smaller_part_takes_away_what_was_left(fleets: Fleets) -> None:
    parts = Parts(900)
    fleet = fleets.make(workers=1, shares=[parts])
    await fleet.tell_time()
    assert (await take(fleet, 100)).allowed

    parts.capacity = 50
    refused = await take(fleet, 51)

    assert not refused.allowed
    assert not refused.impossible
    assert (await take(fleet, 60)).allowed is False
    assert (await take(fleet, 50)).allowed


async def test_a_bucket_that_is_not_there_begins_where_the_region_says(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1, shares=[Parts(900, start=30)])
    await fleet.tell_time()

    assert not (await take(fleet, 31)).allowed
    assert (await take(fleet, 30)).allowed


async def test_only_more_than_the_whole_limit_is_impossible(fleets: Fleets) -> None:
    fleet = fleets.make(workers=1, shares=[Parts(0)])
    await fleet.tell_time()

    beyond_part, beyond_all = await take(fleet, 1000), await take(fleet, 1001)

    assert not beyond_part.allowed
    assert not beyond_part.impossible
    assert beyond_part.retry_after <= WHOLE.window
    assert beyond_all.impossible


async def test_a_worker_whose_clock_is_late_spends_no_grant_of_last_month(fleets: Fleets) -> None:
    fleet = at_the_end_of_a_month(fleets, Parts(100), late=5.0)
    await fleet.advance(-5.0)
    assert (await take(fleet, 10, of=QUOTA)).allowed

    await fleet.advance(6.0)
    late = []
    for _ in range(3):
        late.append((await take(fleet, 30, of=QUOTA)).allowed)
        await fleet.advance(0.5)

    assert late == [False] * 3


async def test_a_worker_whose_clock_is_early_spends_no_grant_of_next_month(fleets: Fleets) -> None:
    now, next_month = Parts(20), Parts(50)
    fleet = at_the_end_of_a_month(fleets, now, next_month, late=-30.0)
    await fleet.advance(-10.0)
    right, early = fleet.workers
    right._wall = fleet.clock
    assert (await right.admit([charge(15, of=QUOTA)])).allowed

    assert not (await early.admit([charge(10, of=QUOTA)])).allowed
    assert (await right.admit([charge(5, of=QUOTA)])).allowed
    await fleet.advance(11.0)
    assert (await early.admit([charge(50, of=QUOTA)])).allowed


def at_the_end_of_a_month(fleets: Fleets, *parts: Parts, late: float) -> WorkerFleet:
    """Return workers whose clocks are `late`, beside a Redis at the very end of a month."""
    clock = Clock()
    clock.advance(PERIODS["month"].ends(clock())[0] - clock())
    fleet = fleets.make(workers=len(parts), shares=parts, clock=clock)
    for worker in fleet.workers:
        worker._wall = lambda: clock() - late
    return fleet
