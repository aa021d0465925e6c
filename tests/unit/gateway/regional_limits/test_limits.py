"""What a region may use of each limit, as the store has last told it."""

import pytest

from sluicegate.gateway.rate_limit.bucket import RegionalRule
from sluicegate.gateway.regional_limits.limits import DividedLimits
from sluicegate.gateway.regional_limits.values import BucketShare, BucketShares
from sluicegate.gateway.types import Rule
from tests.support.clock import Clock

LIMIT = Rule(name="minute", unit="requests", capacity=100, window=60.0)
QUOTA = Rule(name="month", unit="requests", capacity=100, period="month")
DAY = 86_400.0
LEASE, ALONE = 30.0, 0.1
EPOCH = 1_000.0
"""The store's time when the process's clock shows 0, until the store's clock jumps."""
JUMP = 3_600.0


class Region:
    """A region's limits, and the store's replies. It is the 1st of January 1970."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.epoch = EPOCH
        self.limits = DividedLimits(
            region="eu",
            worker="w",
            alone=lambda: ALONE,
            monotonic=self.clock,
            wall=self.clock,
        )

    def hear(self, *, rest: float = 0.5, granted: int | None = None, **own: float) -> None:
        """Apply all shares: `rest`, and those of single buckets."""
        shares = BucketShares(
            now=1_000_000_000_000,
            lease=LEASE,
            regions=2,
            rest=BucketShare(used=rest, before=rest, raised=0.0),
            changed={b: BucketShare(used=used, before=used, raised=0.0) for b, used in own.items()},
            are_all=True,
            granted={} if granted is None else {"q": granted},
        )
        self.limits.apply(shares, sent_at=self.clock())

    def change(self, used: float, *, raised: float | None = None) -> None:
        """Apply a share of the bucket `b` that was raised just now, or at the time `raised`."""
        at = self.epoch + (self.clock() if raised is None else raised)
        self._apply(b=BucketShare(used=used, before=0.05, raised=at))

    def wait(self, seconds: float) -> None:
        """Let time pass, and renew the lease of the shares."""
        self.clock.advance(seconds / 4)
        for _ in range(3):
            self._apply()
            self.clock.advance(seconds / 4)

    def _apply(self, **changed: BucketShare) -> None:
        shares = BucketShares(
            now=int((self.epoch + self.clock()) * 1_000_000_000),
            lease=LEASE,
            regions=2,
            rest=BucketShare(used=0.5, before=0.5, raised=0.0),
            changed=changed,
            are_all=False,
            granted={},
        )
        self.limits.apply(shares, sent_at=self.clock())

    def level(self, *, of: Rule = LIMIT) -> int:
        """Return at how many units the bucket `b` starts if Redis does not know it."""
        rule = self.limits.rule("b", of)
        assert isinstance(rule, RegionalRule)
        return rule.unknown_level

    def capacity(self, bucket: str = "b", *, of: Rule = LIMIT) -> int:
        return self.limits.rule(bucket, of).capacity


@pytest.mark.parametrize(("share", "alone"), [(0.6, 10), (0.05, 5)])
def test_without_the_store_a_region_has_no_more_than_before(share: float, alone: int) -> None:
    region = Region()
    region.hear(rest=share)

    region.clock.advance(LEASE)

    assert region.capacity() == alone


def test_a_region_that_has_lost_its_share_goes_on_as_without_the_store() -> None:
    region = Region()
    region.hear(rest=0.0)
    new = region.capacity()
    region.hear(rest=0.5)
    region.clock.advance(LEASE)
    alone = region.capacity()

    region.hear(rest=0.0)
    joining = region.capacity()
    region.hear(rest=0.5)

    assert (new, alone, joining, region.capacity()) == (0, 10, 10, 50)


def test_a_share_that_is_not_among_all_shares_is_forgotten() -> None:
    region = Region()
    region.hear(b=0.9)
    before = region.capacity()

    region.hear()

    assert (before, region.capacity()) == (90, 50)


def test_a_new_month_has_nothing_of_the_last_months_grant() -> None:
    region = Region()
    region.capacity("q", of=QUOTA)
    region.hear(granted=40)
    before = region.capacity("q", of=QUOTA)

    region.clock.advance(31 * DAY)

    assert (before, region.capacity("q", of=QUOTA)) == (40, 0)
    asked = region.limits.report().quotas["q"]
    assert (asked.period, asked.granted) == (59 * DAY, 0)


def test_units_are_asked_for_with_the_quota_as_it_is_now() -> None:
    region = Region()
    region.capacity("q", of=QUOTA)

    region.capacity("q", of=Rule(name="month", unit="requests", capacity=300, period="month"))

    assert region.limits.report().quotas["q"].limit == 300


@pytest.mark.parametrize(
    ("ends", "asks"),
    [
        pytest.param(31 * DAY, True, id="this month"),
        pytest.param(58 * DAY, False, id="the next month"),
    ],
)
def test_only_demand_of_this_month_asks_for_its_units(*, ends: float, asks: bool) -> None:
    region = Region()
    region.capacity("q", of=QUOTA)
    region.hear(granted=40)

    region.limits.record_demand("q", QUOTA, 7, level=0.0, ends=ends)

    assert ("q" in region.limits.report().quotas) == asks


@pytest.mark.parametrize(("ends", "asks"), [(DAY - 5.0, True), (2 * DAY, False), (5.0, False)])
def test_only_demand_of_this_day_asks_for_units_of_a_day(*, ends: float, asks: bool) -> None:
    region = Region()
    daily = Rule(name="daily", unit="tokens", capacity=100, period="day")
    region.capacity("q", of=daily)
    region.hear(granted=40)

    region.limits.record_demand("q", daily, 7, level=0.0, ends=ends)

    assert ("q" in region.limits.report().quotas) == asks


def test_a_quota_that_has_no_units_left_is_asked_again_after_5_s() -> None:
    region = Region()
    region.capacity("q", of=QUOTA)
    region.hear(granted=40)
    region.hear(granted=40)

    asked = []
    for seconds in (0.0, 4.9, 0.1):
        region.clock.advance(seconds)
        region.limits.record_demand("q", QUOTA, 7, level=0.0)
        asked.append("q" in region.limits.report().quotas)

    assert asked == [False, False, True]


def test_a_granted_need_is_not_asked_for_again() -> None:
    region = Region()
    region.limits.record_demand("q", QUOTA, 30, level=0.0)
    first = region.limits.report().quotas["q"].minimum
    region.hear(granted=40)

    region.limits.record_demand("q", QUOTA, 2, level=1.0)

    assert (first, region.limits.report().quotas["q"].minimum) == (30, 2)


def test_a_bucket_keeps_its_level_at_each_raise_of_its_share() -> None:
    region = Region()
    region.hear(b=0.0)
    levels = []

    for share, seconds in ((0.4, 15.0), (0.6, 10.0), (0.9, 20.0)):
        region.change(share)
        levels.append(region.level())
        region.wait(seconds)

    # 0.4 of the limit refills 10 units in 15 s, and 0.6 of it 10 units in 10 s.
    assert [*levels, region.level()] == [0, 10, 20, 50]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_jump_of_the_stores_clock_refills_no_bucket(*, is_known: bool) -> None:
    """The share was raised before the jump, and the process heard of it before or after."""
    region = Region()
    region.hear(b=0.0)
    levels = []
    if is_known:
        region.change(0.4)
    region.epoch += JUMP

    region.change(0.4, raised=region.clock() - JUMP)
    levels.append(region.level())
    region.wait(15.0)
    levels.append(region.level())
    region.change(0.6)

    assert [*levels, region.level()] == [0, 10, 10]


def test_a_jump_of_the_stores_clock_adds_no_time_to_a_former_share() -> None:
    region = Region()
    region.hear(b=0.0)
    region.change(0.4)
    region.wait(15.0)
    region.epoch += JUMP

    region.change(0.6)

    assert region.level() == 10


def test_a_bucket_has_its_whole_former_share_a_window_after_a_raise() -> None:
    region = Region()
    region.hear(b=0.0)
    region.change(0.4)

    region.wait(LIMIT.window)
    region.change(0.6)

    assert region.level() == 40


def test_a_raise_after_a_fall_begins_at_the_lower_share() -> None:
    region = Region()
    region.hear(b=0.0)
    region.change(0.6)
    region.wait(LIMIT.window)
    region.change(0.3, raised=0.0)

    region.change(0.5)

    assert region.level() == 30


def test_after_a_gap_a_bucket_begins_at_the_lowest_share_of_the_day() -> None:
    region = Region()
    region.hear(b=0.0)
    region.change(0.4)
    region.wait(LIMIT.window)

    region.clock.advance(LEASE)
    region.change(0.6)

    assert region.level() == 5


def test_many_raises_keep_a_level_that_is_safe() -> None:
    region = Region()
    region.hear(b=0.0)
    levels = []
    for share in range(1, 31):
        region.change(share / 100)
        region.wait(2.0)
        levels.append(region.level())

    assert levels == sorted(levels)
    assert 5 <= levels[-1] <= sum(range(1, 31)) * 2.0 / LIMIT.window


def test_many_raises_do_not_forget_a_share_that_lasted_long() -> None:
    region = Region()
    region.hear(b=0.0)
    region.change(0.5)
    region.wait(LIMIT.window)

    for share in range(51, 71):
        region.change(share / 100)
        region.wait(1.0)

    assert region.level() >= 50
