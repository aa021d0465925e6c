"""What a region may use of each limit: everything, or its share where there are several regions."""

import time
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import Protocol

import msgspec
from msgspec.structs import replace

from gateway.rate_limit.base import Charge
from gateway.rate_limit.bucket import period_ends
from gateway.types import (
    CONCURRENT,
    BucketDemand,
    BucketShare,
    BucketShares,
    QuotaDemand,
    RegionalRule,
    Rule,
    ShareReport,
)

_MOST_REPORTED = 500
_LOW = 2
"""A quota is asked for more when less is left than what was granted last, through this."""
_EMPTY = 5.0
"""Seconds until a quota of which nothing was left is asked for again."""
_OFF = 86_400.0
"""Seconds between ends of periods that are not the same month's, at least."""
_NOTHING = BucketShare(used=0.0, before=0.0, raised=-inf)


class LimitShares(Protocol):
    """Says what of a rule holds here, and hears what is asked for."""

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return `rule` as it holds for `bucket` in this region now."""
        ...

    def asked(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Hear that `units` were asked for, admitted or not, and the bucket's `level` since.

        A quota's period `ends` in so many seconds.
        """
        ...


class WholeLimits:
    """`LimitShares` of a gateway that is alone: every limit holds as it is."""

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return `rule`."""
        return rule

    def asked(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Do nothing."""


class SharesStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How many regions there are, and this one's share of what nobody asked for.

    `lease` are the seconds that its shares still hold: 0 is a region that is cut off.
    """

    regions: int
    rest: float
    lease: float


class _Quota(msgspec.Struct):
    """A quota as this worker knows it: what its region was granted, and what it lacks."""

    whole: int
    period: int
    granted: int = 0
    last: int = 0
    """How much was granted last."""
    least: int = 1
    is_low: bool = True
    again_at: float = -inf
    """Nothing was left a moment ago: when to ask again."""


class RegionalShares:
    """`LimitShares` of a region among others.

    A share holds until the lease that came with it ends; then it is at most `alone`, until the
    store answers again. Quotas are granted for good: what a region has not got it refuses.
    """

    def __init__(
        self,
        *,
        region: str,
        worker: str,
        alone: Callable[[], float],
        monotonic: Callable[[], float],
        wall: Callable[[], float] = time.time,  # noqa: TID251 - months are the calendar's
    ) -> None:
        self.region = region
        self.worker = worker
        self._alone = alone
        self._monotonic = monotonic
        self._wall = wall
        self.wanted: Callable[[], None] = lambda: None
        """Called where more of a quota is needed at once."""
        self._rest = _NOTHING
        self._shares: dict[str, BucketShare] = {}
        self._quotas: dict[str, _Quota] = {}
        self._asked: dict[str, BucketDemand] = {}
        self._until = -inf
        self._regions = 0
        self._seen = 0

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return the region's part of `rule`; see `LimitShares`."""
        if rule.period:
            granted = self._quota(bucket, rule).granted
            return _regional(rule, granted, granted)
        share = self._shares.get(bucket, self._rest)
        used, now = share.used, self._monotonic()
        if now >= self._until:
            used = min(used or 1.0, self._alone())
        grown = now - share.raised
        start = min(used, share.before + grown * used / (rule.window or 1.0))
        # What is a whole number but for rounding must not become the number below.
        capacity, level = int(rule.limit * used + 1e-6), int(rule.limit * start + 1e-6)
        return _regional(rule, capacity, level, grown=grown)

    def asked(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Add to the next report; see `LimitShares`."""
        if rule.period:
            quota = self._quota(bucket, rule)
            if ends < inf and abs(self._wall() + ends - quota.period) > _OFF:
                return  # nothing that is granted for this month is of use in that one
            lacks = units if level < units else 0
            is_low = level < max(1, lacks, quota.last // _LOW)
            if is_low and self._monotonic() >= quota.again_at:
                quota.least = max(quota.least, lacks)
                quota.is_low = True
                self.wanted()
            return
        noted = self._asked.get(bucket)
        if noted is None:
            noted = self._asked[bucket] = BucketDemand(lingers=rule.unit == CONCURRENT)
        noted.units += units

    def statistics(self) -> SharesStatistics:
        """Return how this region stands among the others."""
        lease = max(0.0, self._until - self._monotonic())
        return SharesStatistics(regions=self._regions, rest=self._rest.used, lease=lease)

    def report(self) -> ShareReport:
        """Return what was asked for since the last time, of the busiest buckets."""
        asked = self._asked
        if len(asked) > _MOST_REPORTED:
            busiest = sorted(asked, key=lambda bucket: asked[bucket].units, reverse=True)
            asked = {bucket: asked[bucket] for bucket in busiest[:_MOST_REPORTED]}
        self._asked = {}
        # The rest is low by the next report, too.
        low = ((bucket, quota) for bucket, quota in self._quotas.items() if quota.is_low)
        return ShareReport(
            region=self.region,
            worker=self.worker,
            seen=self._seen,
            asked=asked,
            quotas={
                bucket: QuotaDemand(
                    whole=quota.whole, period=quota.period, known=quota.granted, least=quota.least
                )
                for bucket, quota in islice(low, _MOST_REPORTED)
            },
        )

    def take(self, shares: BucketShares, *, asked_at: float) -> None:
        """Go by `shares`, which were asked for at `asked_at`, from now on."""
        came_at = self._monotonic()
        self._rest = _local(shares.rest, shares.now, came_at)
        if shares.are_all:
            self._shares.clear()
        for bucket, share in shares.changed.items():
            self._shares[bucket] = _local(share, shares.now, came_at)
        for bucket, granted in shares.granted.items():
            quota = self._quotas.get(bucket)
            if quota is not None:
                quota.least, quota.is_low = 1, False
                quota.last, quota.granted = granted - quota.granted, granted
                quota.again_at = -inf if quota.last else came_at + _EMPTY
        self._until = asked_at + shares.lease
        self._regions = shares.regions
        self._seen = shares.now

    def _quota(self, bucket: str, rule: Rule) -> _Quota:
        """Return what is known of a quota in its present period."""
        period = int(period_ends(self._wall())[0])
        quota = self._quotas.get(bucket)
        if quota is None or quota.period != period:
            quota = self._quotas[bucket] = _Quota(whole=rule.limit, period=period)
        quota.whole = rule.limit
        return quota


def in_region(charges: Sequence[Charge], shares: LimitShares) -> list[Charge]:
    """Return `charges` on what `shares` say is this region's of their rules."""
    rules = [shares.rule(charge.bucket, charge.rule) for charge in charges]
    return [
        charge if rule is charge.rule else replace(charge, rule=rule)
        for charge, rule in zip(charges, rules, strict=True)
    ]


def _regional(rule: Rule, capacity: int, start: int, *, grown: float = inf) -> RegionalRule:
    return RegionalRule(
        name=rule.name,
        unit=rule.unit,
        capacity=capacity,
        window=rule.window,
        period=rule.period,
        model=rule.model,
        shadow=rule.shadow,
        whole=rule.limit,
        start=start,
        grown=grown,
    )


def _local(share: BucketShare, now: int, came_at: float) -> BucketShare:
    """Return `share` with the time of its raise by this process's clock, rather too late."""
    age = max(0.0, now / 1e9 - share.raised)
    return BucketShare(used=share.used, before=share.before, raised=came_at - age)
