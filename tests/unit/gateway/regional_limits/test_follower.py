"""What a region may use is followed; without the store it holds for its lease, then little does."""

import pytest

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.rate_limit.base import UndividedLimits
from sluicegate.gateway.regional_limits.follower import SharesFollower, limits_of_region
from sluicegate.gateway.regional_limits.limits import DividedLimits
from sluicegate.gateway.regional_limits.values import BucketShare, BucketShares, ShareReport
from sluicegate.gateway.types import Rule
from testing.waiting import until
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
LIMIT = Rule(name="minute", unit="requests", capacity=100, window=60.0)
QUOTA = Rule(name="month", unit="requests", capacity=100, period="month")
LEASE, ALONE = 30.0, 0.1


class Store:
    """Gives the same share to whoever reports, and of quotas what is asked for."""

    def __init__(self) -> None:
        self.reports: list[ShareReport] = []
        self.left: list[str] = []
        self.is_away = False

    def report(self, report: ShareReport, *, lease: float, longest: float) -> BucketShares:
        if self.is_away:
            raise DependencyUnavailable("the store is away")
        self.reports.append(report)
        share = BucketShare(used=0.6, before=0.6, raised=0.0)
        return BucketShares(
            now=1_000_000_000_000,
            lease=lease,
            regions=2,
            rest=share,
            changed={},
            are_all=True,
            granted=dict.fromkeys(report.quotas, 40),
        )

    def leave(self, region: str, worker: str) -> None:
        self.left.append(worker)


def follower(shares: DividedLimits, store: Store, clock: Clock) -> SharesFollower:
    return SharesFollower(
        shares=shares, store=store, document=Document, monotonic=clock, poll=3_600.0
    )


def shares_of(clock: Clock) -> DividedLimits:
    return DividedLimits(region="eu", worker="w", alone=lambda: ALONE, monotonic=clock)


async def test_the_share_is_known_once_entered_and_left_at_the_end() -> None:
    clock, store = Clock(), Store()
    shares = shares_of(clock)

    async with follower(shares, store, clock):
        assert shares.rule("b", LIMIT).capacity == 60

    assert store.left == ["w"]


async def test_without_the_store_the_share_holds_for_its_lease_and_then_little() -> None:
    clock, store = Clock(), Store()
    shares = shares_of(clock)

    async with follower(shares, store, clock) as following:
        store.is_away = True
        clock.advance(LEASE - 0.1)
        await following.refresh()
        before = shares.rule("b", LIMIT).capacity
        clock.advance(0.1)
        after = shares.rule("b", LIMIT).capacity
        store.is_away = False
        await following.refresh()

    assert (before, after) == (60, 10)
    assert (shares.statistics().regions, shares.statistics().lease) == (2, LEASE)
    assert shares.rule("b", LIMIT).capacity == 60


def test_a_lease_counts_from_when_the_report_was_sent() -> None:
    clock, store = Clock(), Store()
    shares = shares_of(clock)

    sent_at = clock()
    answer = store.report(shares.report(), lease=LEASE, longest=1.0)
    clock.advance(LEASE - 0.1)
    shares.apply(answer, sent_at=sent_at)
    before = shares.rule("b", LIMIT).capacity
    clock.advance(0.1)

    assert (before, shares.rule("b", LIMIT).capacity) == (60, 10)


async def test_who_never_reached_the_store_admits_little() -> None:
    clock, store = Clock(), Store()
    shares = shares_of(clock)
    store.is_away = True

    async with follower(shares, store, clock):
        assert shares.rule("b", LIMIT).capacity == 10


async def test_a_quota_that_is_needed_is_asked_for_at_once() -> None:
    clock, store = Clock(), Store()
    shares = shares_of(clock)

    async with follower(shares, store, clock):
        assert shares.rule("q", QUOTA).capacity == 0
        shares.record_demand("q", QUOTA, 7, level=0.0)
        await until(lambda: shares.rule("q", QUOTA).capacity == 40, what="it is granted")

    assert store.reports[-1].quotas["q"].minimum == 7


def test_a_gateway_without_a_region_divides_nothing() -> None:
    limits = limits_of_region("", worker="w", store=Store(), document=Document, monotonic=Clock())

    assert isinstance(limits.shares, UndividedLimits)
    assert limits.shares.rule("b", LIMIT) is LIMIT
    assert not limits.figures
