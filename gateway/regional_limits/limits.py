"""Limits a region to its share of each limit.

`policy` decides how large the shares are. `gateway.ledger.regional_shares` stores the shares.
`follower` fetches them.
"""

import time
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from sluicegate.gateway.periods import PERIODS
from sluicegate.gateway.rate_limit.bucket import RegionalRule
from sluicegate.gateway.regional_limits.values import (
    BucketDemand,
    BucketShare,
    BucketShares,
    QuotaDemand,
    ShareReport,
)
from sluicegate.gateway.types import CONCURRENT, Rule
from sluicegate.wire.metric_declaration import Aggregation, gauge

_MAX_REPORTED = 500
_LOW = 2
"""A quota is low when fewer units are left than the last grant divided by this number."""
_EMPTY = 5.0
"""Seconds until units of a quota are requested again, after the store had no units left."""
_SAME_END = 43_200.0
"""Ends of a quota's period that differ by at most so many seconds are the same end. They differ if
clocks do."""
_MAX_FORMER = 8
"""How many former shares are kept. While demand moves, a share can rise with every report."""


_REGIONS: Final = gauge(
    "sluicegate_region_limit_regions", "Regions that share limits, summed over workers."
)
_REST: Final = gauge(
    "sluicegate_region_limit_share_ratio",
    "This region's share of buckets without a share of their own.",
    over=Aggregation.LEAST,
)
_LEASE: Final = gauge(
    "sluicegate_region_limit_lease_seconds",
    "Time until the region's shares expire; 0 if the region cannot reach the ledger.",
    over=Aggregation.LEAST,
)


class SharesStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number of regions, and this region's default share.

    The default share (`rest`) applies to each bucket for which the region has no separate share.
    `lease` is the number of seconds until the shares expire. It is 0 after they have expired, which
    happens if the region cannot reach the store.
    """

    regions: Annotated[int, _REGIONS]
    rest: Annotated[float, _REST]
    lease: Annotated[float, _LEASE]


class _QuotaState(msgspec.Struct):
    """Tracks how many units of a quota the region has been granted, and how many it needs."""

    limit: int
    period: int
    granted: int = 0
    last_grant: int = 0
    minimum: int = 1
    """The fewest units that the next grant must have."""
    is_low: bool = True
    retry_at: float = -inf
    """When to request units again, after the store had no units left."""


class _Share(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a region's share of a bucket, and how the share grew.

    The share is `used` since the time `raised` on this process's clock, which is `raised_at` on the
    store's clock. `former` holds the shares before that, oldest first, each with the seconds for
    which it applied. The share before all these shares was `before`.
    """

    used: float
    raised: float
    raised_at: float
    before: float
    former: tuple[tuple[float, float], ...] = ()

    def level(self, used: float, grown: float, window: float) -> float:
        """Return the level of a bucket that nobody uses, as a fraction of the limit.

        The share was raised `grown` seconds ago, and at most `used` of it applies. When a share
        rises, the bucket keeps its level, because other regions may have used the difference. Then
        the bucket refills at the new rate.
        """
        if grown >= window:
            return used
        level = self.before
        for share, seconds in self.former:
            level = min(share, level + seconds * share / window)
        return min(used, level + grown * used / window)


_NOTHING = _Share(used=0.0, raised=-inf, raised_at=-inf, before=0.0)


class DividedLimits:
    """Implements `RegionalLimits` for one of several regions. Only the event loop uses it.

    Shares are valid until their lease expires. The lease expires if the store of shares stops
    responding. Until the store responds again, the region applies its last shares, but at most the
    fraction of each limit that the function `alone` returns. If other regions have got its shares
    meanwhile, it applies this fraction until it has shares again.

    The store grants units of quotas to the region. Grants do not expire. The region refuses
    requests that exceed its grants.
    """

    def __init__(
        self,
        *,
        region: str,
        worker: str,
        alone: Callable[[], float],
        monotonic: Callable[[], float],
        wall: Callable[[], float] = time.time,  # noqa: TID251 - quotas follow the calendar
    ) -> None:
        self.region = region
        self.worker = worker
        self._alone = alone
        self._monotonic = monotonic
        self._wall = wall
        self.on_quota_low: Callable[[], None] = lambda: None
        """Called when more units of a quota are needed before the next poll."""
        self._rest = _NOTHING
        """The share of all buckets that have no own share."""
        self._shares: dict[str, _Share] = {}
        self._quotas: dict[str, _QuotaState] = {}
        self._demand: dict[str, BucketDemand] = {}
        self._until = -inf
        self._was_alone = False
        """Whether a lease of the shares has expired."""
        self._sent_at = -inf
        """When the last report was sent whose shares were applied."""
        self._regions = 0
        self._seen = 0
        """The time, on the store's clock, of the shares that were applied last. The store returns
        the changes since this time."""

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return `rule` reduced to the region's share."""
        if rule.period:
            granted = self._quota(bucket, rule).granted
            return _regional(rule, granted, granted)
        share = self._shares.get(bucket, self._rest)
        used, now = share.used, self._monotonic()
        grown = now - share.raised
        if now >= self._until or (self._was_alone and not used):
            # Until the store has responded for the first time, `used` is 0.
            used = min(used or 1.0, self._alone())
        start = share.level(used, grown, rule.window or 1.0)
        # The 1e-6 keeps a rounding error from turning a whole number into the next lower one.
        capacity, level = int(rule.limit * used + 1e-6), int(rule.limit * start + 1e-6)
        # After a whole window, former shares no longer matter.
        former = ((share.before, inf), *share.former) if grown < rule.window else ()
        return _regional(rule, capacity, level, grown=grown, former=former)

    def record_demand(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Include demand in the next report. If a quota is low, request more units."""
        if rule.period:
            quota = self._quota(bucket, rule)
            if ends < inf and abs(self._wall() + ends - quota.period) > _SAME_END:
                # The demand is for another period. This period's grant does not apply to that one.
                return
            lacks = units if level < units else 0
            is_low = level < max(1, lacks, quota.last_grant // _LOW)
            if is_low and self._monotonic() >= quota.retry_at:
                quota.minimum = max(quota.minimum, lacks)
                quota.is_low = True
                self.on_quota_low()
            return
        demand = self._demand.get(bucket)
        if demand is None:
            demand = self._demand[bucket] = BucketDemand(is_held=rule.unit == CONCURRENT)
        demand.units += units

    def statistics(self) -> SharesStatistics:
        """Return the number of regions, this region's share, and the remaining lease."""
        lease = max(0.0, self._until - self._monotonic())
        return SharesStatistics(regions=self._regions, rest=self._rest.used, lease=lease)

    def report(self) -> ShareReport:
        """Return how many units callers have requested of each bucket since the last report.

        A bucket holds the units of one limit. If there are too many buckets, the report includes
        only those with the most requested units.
        """
        demand = self._demand
        if len(demand) > _MAX_REPORTED:
            busiest = sorted(demand, key=lambda bucket: demand[bucket].units, reverse=True)
            demand = {bucket: demand[bucket] for bucket in busiest[:_MAX_REPORTED]}
        self._demand = {}
        # If more quotas are low than fit into a report, the other low quotas are reported later.
        low = ((bucket, quota) for bucket, quota in self._quotas.items() if quota.is_low)
        return ShareReport(
            region=self.region,
            worker=self.worker,
            seen=self._seen,
            demand=demand,
            quotas={
                bucket: QuotaDemand(
                    limit=quota.limit,
                    period=quota.period,
                    granted=quota.granted,
                    minimum=quota.minimum,
                )
                for bucket, quota in islice(low, _MAX_REPORTED)
            },
        )

    def apply(self, shares: BucketShares, *, sent_at: float) -> None:
        """Use `shares` from now on.

        Their lease begins at `sent_at`, the time when the report was sent.
        """
        received_at = self._monotonic()
        rest = self._rest
        # Without a lease, a share may have fallen and risen again unnoticed.
        is_gap = shares.are_all or received_at >= self._until
        self._was_alone |= -inf < self._until <= received_at
        if shares.are_all:
            self._shares.clear()
        for bucket, share in shares.changed.items():
            former = None if is_gap else self._shares.get(bucket, rest)
            self._shares[bucket] = _local(share, former, shares.now, received_at, self._sent_at)
        former = None if is_gap else rest
        self._rest = _local(shares.rest, former, shares.now, received_at, self._sent_at)
        for bucket, granted in shares.granted.items():
            quota = self._quotas.get(bucket)
            if quota is not None:
                quota.minimum, quota.is_low = 1, False
                quota.last_grant, quota.granted = granted - quota.granted, granted
                quota.retry_at = -inf if quota.last_grant else received_at + _EMPTY
        self._until, self._sent_at = sent_at + shares.lease, sent_at
        self._regions = shares.regions
        self._seen = shares.now

    def _quota(self, bucket: str, rule: Rule) -> _QuotaState:
        """Return the state of a quota in the current period.

        At the start of a period, nothing is granted.
        """
        period = int(PERIODS[rule.period].ends(self._wall())[0])
        quota = self._quotas.get(bucket)
        if quota is None or quota.period != period:
            quota = self._quotas[bucket] = _QuotaState(limit=rule.limit, period=period)
        quota.limit = rule.limit
        return quota


def _regional(
    rule: Rule,
    capacity: int,
    start: int,
    *,
    grown: float = inf,
    former: tuple[tuple[float, float], ...] = (),
) -> RegionalRule:
    return RegionalRule(
        name=rule.name,
        unit=rule.unit,
        capacity=capacity,
        window=rule.window,
        period=rule.period,
        model=rule.model,
        shadow=rule.shadow,
        full_limit=rule.limit,
        unknown_level=start,
        grown_for=grown,
        former_shares=former,
    )


def _local(
    share: BucketShare, former: _Share | None, now: int, received_at: float, sent_before: float
) -> _Share:
    """Return `share` with `raised` converted to this process's clock.

    It is unknown how long the store's response was in transit, so the time `raised` cannot be
    converted exactly. The result has the latest possible time.

    `former` is the share that this process has applied until now, if its lease has not expired.
    The report before this one was sent at `sent_before`. If the store's clock was set forward, no
    more time counts than has passed on this process's clock.
    """
    raised = received_at - max(0.0, now / 1_000_000_000 - share.raised)
    fresh = _Share(used=share.used, raised=raised, raised_at=share.raised, before=share.before)
    if former is None or share.raised < former.raised_at:
        return fresh
    if share.raised == former.raised_at:
        return replace(fresh, raised=former.raised, before=former.before, former=former.former)
    shares = former.former if len(former.former) < _MAX_FORMER else _merged(former.former)
    # The former report would have returned this share if it had been raised before.
    raised = max(raised, sent_before)
    # A share only falls until it is raised again, so `former.used` is the lowest share that this
    # process has seen since the former raise. If the share was even lower between two reports, no
    # other region has got the difference, because a region holds it until all its workers have
    # applied the lower share.
    lasted = min(share.raised - former.raised_at, raised - former.raised)
    shares = (*shares, (former.used, lasted))
    return replace(fresh, raised=raised, before=former.before, former=shares)


def _merged(shares: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Return `former` of a share, with the two neighbours that differ least merged into one.

    The lower share for the time of both never refills a bucket to more than both shares would.
    """
    pairs = range(len(shares) - 1)
    at = min(pairs, key=lambda pair: abs(shares[pair + 1][0] - shares[pair][0]))
    (first, first_lasted), (second, second_lasted) = shares[at : at + 2]
    merged = (min(first, second), first_lasted + second_lasted)
    return (*shares[:at], merged, *shares[at + 2 :])
