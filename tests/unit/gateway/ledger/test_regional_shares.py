"""Shares of limits: what all regions go by together is never more than the limit."""

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.rate_limit.bucket import RegionalRule
from sluicegate.gateway.regional_limits.limits import DividedLimits
from sluicegate.gateway.regional_limits.policy import REST
from sluicegate.gateway.types import Rule
from tests.support.clock import Clock as Monotonic
from tests.support.ledgers import Clock, ledger_url

LIMIT = Rule(name="minute", unit="requests", capacity=1000, window=60.0)
QUOTA = Rule(name="month", unit="tokens", capacity=10_000, period="month")
PLACES = Rule(name="running", unit="concurrent", capacity=1000)
BUCKETS = ("rl:{acme}:t:minute", "rl:{else}:t:minute", "rl:{third}:t:minute")
LEASE, SPENT_AFTER, LONGEST = 30.0, 2.0, 60.0
A_MOMENT = 0.001


class Worker:
    """A worker of a region: what it goes by, and the store that it reports to."""

    def __init__(self, ledger: Ledger, clock: Monotonic, region: str, name: str) -> None:
        self._ledger = ledger
        self._clock = clock
        self.shares = DividedLimits(
            region=region,
            worker=f"{region}/{name}",
            alone=lambda: 0.0,
            monotonic=clock,
            wall=lambda: ledger_clock(ledger) / 1e9,
        )

    def ask(self, bucket: str, units: int, *, of: Rule = LIMIT) -> None:
        self.shares.record_demand(bucket, of, units)

    def report(self, *, lease: float = LEASE) -> None:
        sent_at = self._clock()
        shares = self._ledger.shares.report(self.shares.report(), lease=lease, longest=LONGEST)
        self.shares.apply(shares, sent_at=sent_at)

    def leave(self) -> None:
        self._ledger.shares.leave(self.shares.region, self.shares.worker)

    def capacity(self, bucket: str = BUCKETS[0], *, of: Rule = LIMIT) -> int:
        return self.shares.rule(bucket, of).capacity


def ledger_clock(ledger: Ledger) -> int:
    return ledger._store.clock()


class Regions:
    """Workers by region, over one ledger, and time that passes for all of them."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._wall = clock
        self.clock = Monotonic()

    def worker(self, region: str, name: str = "0", *, clock: Monotonic | None = None) -> Worker:
        return Worker(self._ledger, clock or self.clock, region, name)

    def live(self) -> dict[str, int]:
        return {region.name: region.workers for region in self._ledger.shares.regions()}

    def held(self, bucket: str) -> list[tuple[str, float, bool]]:
        """Return each region, the share that it holds, and whether it has just joined."""
        table = schema.region_shares
        with self._ledger._store.reading() as connection:
            found = connection.execute(table.select()).all()
        own = [row for row in found if row.bucket == bucket]
        rows = own or [row for row in found if row.bucket == REST]
        return [(row.region, row.held, not row.raised) for row in rows]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._wall.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Set the store's clock forward, or back if `seconds` is negative."""
        self._wall.advance(seconds)

    def run(self, *workers: Worker, seconds: int) -> None:
        for _ in range(seconds):
            for worker in workers:
                worker.report()
            self.advance(1.0)


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    clock = Clock()
    with Ledger.create(ledger_url(tmp_path), clock=clock) as ledger:
        yield Regions(ledger, clock)


def test_a_region_that_is_alone_has_everything(regions: Regions) -> None:
    alone = regions.worker("eu")

    regions.run(alone, seconds=2)

    assert alone.capacity() == 1000


def test_two_regions_have_a_half_each_until_somebody_asks(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, seconds=2)
    us.report()
    assert us.capacity() == 0

    regions.run(eu, us, seconds=8)

    assert (eu.capacity(), us.capacity()) == (500, 500)


def test_shares_follow_what_is_asked_for(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)

    for _ in range(20):
        eu.ask(BUCKETS[0], 30)
        us.ask(BUCKETS[0], 10)
        regions.run(eu, us, seconds=1)

    assert eu.capacity() == pytest.approx(725, abs=25)
    assert us.capacity() == pytest.approx(275, abs=25)
    # Nobody asks for the others.
    assert (eu.capacity(BUCKETS[1]), us.capacity(BUCKETS[1])) == (500, 500)


def test_a_lost_region_stops_before_the_other_gets_its_share(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)

    # `us` does not reach the store any more.
    when: dict[str, float] = {}
    for second in range(60):
        regions.run(eu, seconds=1)
        if us.capacity() == 0:
            when.setdefault("us stops", second)
        if eu.capacity() == 1000:
            when.setdefault("eu has all", second)

    assert when["us stops"] + SPENT_AFTER <= when["eu has all"]
    assert when["eu has all"] <= LEASE + SPENT_AFTER + 2


def test_a_region_keeps_its_share_when_its_last_worker_stops(regions: Regions) -> None:
    first, last, us = (regions.worker(*place) for place in (("eu", "0"), ("eu", "1"), ("us", "0")))
    regions.run(first, last, us, seconds=8)

    left = []
    for worker in (first, last):
        worker.leave()
        regions.run(us, seconds=2)
        left.append(regions.live())

    assert left == [{"eu": 1, "us": 1}] * 2
    assert us.capacity() == 500


def test_places_of_work_move_once_the_longest_work_has_ended(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)
    for worker in (eu, us):
        worker.ask(BUCKETS[0], 1, of=PLACES)

    capacities = []
    for _ in range(2):
        for _ in range(int(LONGEST)):
            eu.ask(BUCKETS[0], 100, of=PLACES)
            regions.run(eu, us, seconds=1)
        capacities.append(eu.capacity(of=PLACES))

    assert capacities[0] <= 510
    assert capacities[1] > 900


def test_while_nobody_reaches_the_store_shares_hold_for_their_lease(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)

    regions.advance(LEASE - 2.0)

    assert (eu.capacity(), us.capacity()) == (500, 500)
    regions.advance(2.0)
    assert (eu.capacity(), us.capacity()) == (0, 0)


@pytest.mark.parametrize("seconds", [LEASE + 3.0, 86_400.0])
def test_after_an_outage_of_the_store_regions_have_the_shares_they_had(
    regions: Regions, seconds: float
) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)
    regions.advance(seconds)

    regions.run(eu, seconds=3)
    first = eu.capacity()
    us.report()

    assert (first, us.capacity()) == (500, 500)


def test_a_region_that_does_not_come_back_from_an_outage_is_lost(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)
    regions.advance(LEASE + 3.0)

    regions.run(eu, seconds=int(LEASE) + 4)

    rule = eu.shares.rule(BUCKETS[0], LIMIT)
    assert isinstance(rule, RegionalRule)
    assert (rule.capacity, regions.live()) == (1000, {"eu": 1})
    assert rule.unknown_level < 600


def test_a_new_region_waits_for_regions_that_an_outage_stopped(regions: Regions) -> None:
    eu = regions.worker("eu")
    regions.run(eu, seconds=2)
    regions.advance(86_400.0)
    ap = regions.worker("ap")

    regions.run(ap, seconds=int(LEASE) - 3)
    first = ap.capacity()
    regions.run(ap, seconds=8)

    assert (first, ap.capacity()) == (0, 1000)


@pytest.mark.parametrize("seconds", [15.0, 86_400.0])
def test_a_jump_of_the_stores_clock_ends_no_lease(regions: Regions, seconds: float) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)
    regions.run(eu, seconds=20)

    regions.jump(seconds)
    regions.run(eu, seconds=7)
    during = (eu.capacity(), us.capacity())
    regions.run(eu, seconds=8)

    assert during == (500, 500)
    assert (eu.capacity(), us.capacity()) == (1000, 0)


def test_after_an_outage_a_region_with_a_longer_lease_ends_no_others(regions: Regions) -> None:
    eu, us, ap = (regions.worker(region) for region in ("eu", "us", "ap"))
    for _ in range(12):
        for worker, lease in ((eu, LEASE), (us, LEASE), (ap, 10 * LEASE)):
            worker.report(lease=lease)
        regions.advance(1.0)
    regions.advance(2 * LEASE)

    regions.run(eu, seconds=3)
    first = eu.capacity()
    us.report()

    assert first == us.capacity() == 333


@pytest.mark.parametrize("gap", [3.0, 10.0])
def test_a_lost_region_ends_within_its_lease_of_slow_reports(regions: Regions, gap: float) -> None:
    """At most 2 s count between two reports."""
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)

    for _ in range(int(LEASE / 2) + 4):
        regions.advance(gap)
        eu.report()

    assert (eu.capacity(), us.capacity()) == (1000, 0)


@pytest.mark.parametrize("seconds", [3.0, 60.0, 86_400.0])
def test_after_the_stores_clock_was_set_back_shares_move(regions: Regions, seconds: float) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)
    for _ in range(3):
        us.ask(BUCKETS[0], 100)
        regions.run(eu, us, seconds=1)
    regions.jump(-seconds)

    for _ in range(30):
        eu.ask(BUCKETS[0], 100)
        regions.run(eu, us, seconds=1)
    moved = eu.capacity()
    regions.run(eu, seconds=int(LEASE) + 6)

    assert moved > 800
    assert (eu.capacity(), us.capacity()) == (1000, 0)


def test_a_worker_applies_a_share_that_fell_after_the_clock_was_set_back(regions: Regions) -> None:
    """The worker did not report from before the jump until the clock showed the same time."""
    first, late, us = (regions.worker(*place) for place in (("eu", "0"), ("eu", "1"), ("us", "0")))
    regions.run(first, late, us, seconds=8)
    regions.jump(-20.0)

    for _ in range(21):
        us.ask(BUCKETS[0], 100)
        regions.run(first, us, seconds=1)
        assert late.capacity() + us.capacity() <= LIMIT.capacity
    late.report()

    assert late.capacity() == first.capacity() < 500


def test_a_jump_of_the_stores_clock_moves_no_places_of_work_early(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)
    for worker in (eu, us):
        worker.ask(BUCKETS[0], 1, of=PLACES)
    for _ in range(10):
        eu.ask(BUCKETS[0], 100, of=PLACES)
        regions.run(eu, us, seconds=1)

    regions.jump(3600.0)
    for _ in range(30):
        eu.ask(BUCKETS[0], 100, of=PLACES)
        regions.run(eu, us, seconds=1)

    assert eu.capacity(of=PLACES) <= 510


def test_a_bucket_that_nobody_knows_is_not_filled_by_a_larger_share(regions: Regions) -> None:
    eu, us = regions.worker("eu"), regions.worker("us")
    regions.run(eu, us, seconds=8)
    us.ask(BUCKETS[0], 100)
    regions.run(eu, us, seconds=15)

    rule = us.shares.rule(BUCKETS[0], LIMIT)

    assert isinstance(rule, RegionalRule)
    assert rule.capacity > 900
    assert rule.unknown_level < 500
    regions.run(eu, us, seconds=60)
    assert us.shares.rule(BUCKETS[0], LIMIT).capacity == 950


def test_a_worker_whose_clock_stood_still_forgets_its_shares(regions: Regions) -> None:
    still = regions.worker("eu", "still", clock=Monotonic())
    eu, us = regions.worker("eu"), regions.worker("us")
    hour = Rule(name="hour", unit="requests", capacity=1000, window=3600.0)
    regions.run(still, eu, us, seconds=8)
    for _ in range(int(LEASE) + 10):  # the shares of `eu` go to `us`
        regions.run(us, seconds=1)

    regions.run(eu, us, seconds=8)
    still.report()

    rule = still.shares.rule(BUCKETS[0], hour)
    assert isinstance(rule, RegionalRule)
    assert rule.capacity == 500
    assert rule.unknown_level < 10


def test_a_quota_is_granted_in_steps_and_never_twice(regions: Regions) -> None:
    workers = [regions.worker("eu", "0"), regions.worker("eu", "1"), regions.worker("us")]
    regions.run(*workers, seconds=8)
    first = workers[0].capacity("q", of=QUOTA)

    used = dict.fromkeys(("eu", "us"), 0)
    for _ in range(100):
        for worker in workers:
            left = worker.capacity("q", of=QUOTA) - used[worker.shares.region]
            taken = min(120, max(0, left))
            used[worker.shares.region] += taken
            worker.shares.record_demand("q", QUOTA, 120, level=float(left - taken))
        regions.run(*workers, seconds=1)

    assert first == 0
    assert sum(used.values()) == QUOTA.capacity


def test_workers_of_a_region_that_need_a_quota_are_granted_it_once(regions: Regions) -> None:
    workers = [regions.worker("eu", "0"), regions.worker("eu", "1")]
    for worker in workers:
        worker.capacity("q", of=QUOTA)

    for worker in workers:
        worker.report()

    assert [worker.capacity("q", of=QUOTA) for worker in workers] == [500, 500]


def test_a_report_asks_for_so_many_quotas_and_the_next_for_the_rest(regions: Regions) -> None:
    worker = regions.worker("eu")
    names = [f"rl:{{tenant {number}}}:t:month" for number in range(700)]
    for name in names:
        worker.capacity(name, of=QUOTA)

    first = len(worker.shares.report().quotas)
    worker.report()
    worker.report()

    assert first == 500
    assert all(worker.capacity(name, of=QUOTA) for name in names)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("jumps", "spent_after"),
    [
        ([0.0], SPENT_AFTER),
        ([0.0] * 60 + [1.0, 10.0, 3600.0], A_MOMENT),
        ([0.0] * 60 + [-1.0, -10.0, -3600.0], SPENT_AFTER),
        ([0.0] * 60 + [-30.0, -8.0, 8.0, 30.0], A_MOMENT),
    ],
    ids=["a steady clock", "jumps of the clock", "a clock set back", "jumps both ways"],
)
def test_in_any_turmoil_all_together_have_at_most_the_limit(
    regions: Regions, seed: int, jumps: list[float], spent_after: float
) -> None:
    """Workers ask, lose the store, end and come back; what they took is spent for 2 s more.

    A jump of the store's clock counts as up to 2 s.
    """
    chooser = random.Random(seed)
    places = [(region, name) for region in ("eu", "us", "ap") for name in ("0", "1")]
    workers = {place: regions.worker(*place) for place in places[: chooser.randrange(2, 7)]}
    cut: set[tuple[str, str]] = set()
    lately: dict[tuple[str, str], deque[tuple[float, int]]] = defaultdict(deque)
    busiest = 0

    for _ in range(200):
        for place, worker in workers.items():
            for bucket in BUCKETS:
                worker.ask(bucket, chooser.choice([0, 0, 1, 50]))
            if place not in cut and chooser.random() < 0.8:
                worker.report()
        if chooser.random() < 0.03:
            place = chooser.choice(places)
            cut ^= {place}
        if chooser.random() < 0.02:
            place = chooser.choice(places)
            workers.pop(place, None)
            workers[place] = regions.worker(*place)
        for bucket in BUCKETS:
            total = _together(workers, lately, regions.clock(), bucket, spent_after)
            busiest = max(busiest, total)
            assert total <= LIMIT.capacity
        regions.advance(chooser.choice([0.2, 1.0, 1.0, 5.0]))
        regions.jump(chooser.choice(jumps))

    assert busiest > 0.9 * LIMIT.capacity


@pytest.mark.parametrize("seed", range(2))
def test_an_unused_bucket_begins_with_at_most_what_its_region_held(
    regions: Regions, seed: int
) -> None:
    """Demand moves, and workers lose the store, end and come back, for `LEASE` and longer."""
    chooser = random.Random(seed)
    places = [(region, name) for region in ("eu", "us") for name in ("0", "1")]
    workers = {place: regions.worker(*place) for place in places}
    cut: set[tuple[str, str]] = set()
    demand = {"eu": 0, "us": 0}
    held = HeldLevels(regions)
    below = 0

    for _ in range(200):
        if chooser.random() < 0.06:
            demand = {region: chooser.choice([0, 1, 10, 50]) for region in demand}
        for place in chooser.sample(places, len(places)):
            workers[place].ask(BUCKETS[0], demand[place[0]])
            if place not in cut and chooser.random() < 0.8:
                workers[place].report()
                held.limit()
        if chooser.random() < 0.03:
            cut ^= {chooser.choice(places)}
        if chooser.random() < 0.02:
            place = chooser.choice(places)
            workers[place] = regions.worker(*place)
        below += sum(held.check(worker) for worker in workers.values())
        seconds = chooser.choice([0.2, 1.0, 2.0]) if chooser.random() < 0.97 else LEASE + 5.0
        regions.advance(seconds)
        held.refill(seconds)

    assert below > 100


class HeldLevels:
    """The levels of each region's unused bucket if all that the region holds refilled it."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._rules = [
            Rule(name="w", unit="requests", capacity=10**6, window=window)
            for window in (1.0, 60.0, 3600.0)
        ]
        self._levels: dict[tuple[str, float], float] = {}

    def limit(self) -> None:
        """Limit the levels to what regions hold after a report."""
        for region, share, has_joined in self._regions.held(BUCKETS[0]):
            for rule in self._rules:
                key = region, rule.window
                self._levels[key] = share if has_joined else min(self._levels[key], share)

    def refill(self, seconds: float) -> None:
        for region, share, _ in self._regions.held(BUCKETS[0]):
            for rule in self._rules:
                key = region, rule.window
                self._levels[key] = min(share, self._levels[key] + seconds * share / rule.window)

    def check(self, worker: Worker) -> int:
        """Check where the worker's buckets begin; return how many begin below their capacity."""
        below = 0
        for rule in self._rules:
            found = worker.shares.rule(BUCKETS[0], rule)
            assert isinstance(found, RegionalRule)
            level = self._levels.get((worker.shares.region, rule.window), 0.0)
            assert found.unknown_level <= rule.limit * level + 1.0
            below += found.unknown_level < found.capacity
        return below


def _together(
    workers: dict[tuple[str, str], Worker],
    lately: dict[tuple[str, str], deque[tuple[float, int]]],
    now: float,
    bucket: str,
    spent_after: float,
) -> int:
    """Return what all regions may be spending now: of each, the most in the last seconds."""
    most: dict[str, int] = defaultdict(int)
    for (region, name), worker in workers.items():
        seen = lately[f"{region}{name}", bucket]
        seen.append((now, worker.capacity(bucket)))
        while seen[0][0] <= now - spent_after:
            seen.popleft()
        most[region] = max(most[region], *(capacity for _, capacity in seen))
    return sum(most.values())
