"""Limits rates in one process while Redis is down."""

import time
from collections.abc import Callable, Sequence
from math import inf

import msgspec

from sluicegate.gateway.periods import PERIODS
from sluicegate.gateway.rate_limit.base import Charge, Decision
from sluicegate.gateway.rate_limit.bucket import (
    TOLERANCE,
    capacity,
    policy,
    rate,
    refilled,
    refusal,
)
from sluicegate.gateway.types import Rule

_FIRST_SWEEP = 4096
_MIN_FRACTION = 1e-6


class _Bucket(msgspec.Struct, gc=False):
    """Holds the level of a bucket at the time `since`, and the rule that applied at that time."""

    level: float
    since: float
    full_at: float
    rule: Rule
    beyond: float = 0.0
    """After the limit was lowered: how many more units are in use than the new limit allows."""
    held: int = 0
    period_end: float = inf


class MemoryRateLimiter:
    """Decides without Redis. The size of each bucket is `fraction` of its rule's capacity.

    `wall` returns the seconds since the epoch, which determine when the periods of quotas end.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float],
        fraction: float = 1.0,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - quotas follow the calendar
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self.fraction = fraction
        self._buckets: dict[str, _Bucket] = {}
        self._sweep_at = _FIRST_SWEEP

    @property
    def fraction(self) -> float:
        """The size of each bucket as a fraction of its rule's capacity.

        A bucket adopts a new fraction when it is next used.
        """
        return self._fraction

    @fraction.setter
    def fraction(self, fraction: float) -> None:
        self._fraction = max(fraction, _MIN_FRACTION)

    def try_admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide immediately; never return `None`."""
        now = self._monotonic()
        buckets = [self._bucket(charge, now) for charge in charges]
        over = [
            charge
            for charge, bucket in zip(charges, buckets, strict=True)
            if charge.amount > bucket.level + TOLERANCE
        ]
        if not all(charge.rule.shadow for charge in over):
            levels = [bucket.level for bucket in buckets]
            ends = [self._ends(bucket) for bucket in buckets]
            return refusal(charges, levels, self._fraction, ends=ends)
        policies, reservations = [], []
        for charge, bucket in zip(charges, buckets, strict=True):
            if charge not in over:
                self._take(charge, bucket, now)
            if charge.is_reserved:
                reservations.append(
                    _BucketReservation(bucket, 0 if charge in over else charge.amount)
                )
            if not charge.rule.shadow:
                policies.append(policy(charge.rule, bucket.level, ends=self._ends(bucket)))
        return Decision(
            allowed=True,
            policies=tuple(policies),
            shadowed=tuple([charge.rule for charge in over]),
            reservations=tuple(reservations),
        )

    def _take(self, charge: Charge, bucket: _Bucket, now: float) -> None:
        bucket.level -= charge.amount
        missing = capacity(charge.rule, self._fraction) - bucket.level
        refill = rate(charge.rule) * self._fraction
        bucket.full_at = now + (missing / refill if refill else self._ends(bucket))

    def _ends(self, bucket: _Bucket) -> float:
        return bucket.period_end - self._wall() if bucket.period_end < inf else 0.0

    def _bucket(self, charge: Charge, now: float) -> _Bucket:
        bucket = self._buckets.get(charge.bucket)
        rule = charge.rule
        if bucket is None:
            self._drop_full(now)
            bucket = _Bucket(capacity(rule, self._fraction), now, now, rule)
            self._buckets[charge.bucket] = bucket
            self._begin_period(bucket, rule)
        else:
            if not rule.period:
                bucket.period_end = inf
            elif bucket.period_end == inf or bucket.period_end <= self._wall():
                bucket.level = capacity(rule, self._fraction) - bucket.held
                bucket.beyond, bucket.rule = 0.0, rule
                self._begin_period(bucket, rule)
            before = rule if rule.limit == bucket.rule.limit else bucket.rule
            elapsed = now - bucket.since
            bucket.level = refilled(bucket.level, elapsed, before, self._fraction, bucket.held)
            bucket.beyond = max(0.0, bucket.beyond - elapsed * rate(before) * self._fraction)
            bucket.since = now
            if before is not rule:
                self._resize(bucket, rule)
        return bucket

    def _resize(self, bucket: _Bucket, rule: Rule) -> None:
        """Change the bucket's level by as much as its limit has changed; used units stay used."""
        difference = (rule.limit - bucket.rule.limit) * self._fraction
        moved = bucket.level + difference - bucket.beyond
        bucket.level = min(max(moved, min(bucket.level, 0.0)), capacity(rule, self._fraction))
        bucket.beyond = max(0.0, bucket.level - moved)
        bucket.rule = rule

    def _begin_period(self, bucket: _Bucket, rule: Rule) -> None:
        bucket.period_end = PERIODS[rule.period].ends(self._wall())[0] if rule.period else inf

    def _drop_full(self, now: float) -> None:
        """Drop buckets that are full at `now`, because a newly created bucket is full, too."""
        if len(self._buckets) < self._sweep_at:
            return
        kept = {
            name: bucket
            for name, bucket in self._buckets.items()
            if bucket.full_at > now or bucket.held
        }
        self._buckets = kept
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(kept))


class _BucketReservation:
    """Reserves units of a bucket for admitted work; implements `UnitReservation`."""

    __slots__ = ("_amount", "_bucket")

    def __init__(self, bucket: _Bucket, amount: int) -> None:
        bucket.held += amount
        self._bucket = bucket
        self._amount = amount

    def settle(self, spent: int) -> None:
        """Charge `spent` units, and give the other reserved units back to the bucket."""
        amount, self._amount = self._amount, 0
        if not amount:
            return
        bucket, unused = self._bucket, amount - spent
        bucket.held -= amount
        # Unused units first reduce the excess (`beyond`) over a lowered limit.
        repaid = min(bucket.beyond, max(0, unused))
        bucket.beyond -= repaid
        bucket.level += unused - repaid
