"""A rate limiter of one process: for gateways without Redis, and for the share while it is down."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.rate_limit.base import Charge, Decision, LimiterStatistics
from gateway.rate_limit.bucket import TOLERANCE, capacity, policy, rate, refilled, refusal
from gateway.rate_limit.spender import AskingSpender, Spender

_FIRST_SWEEP = 4096


class _Bucket(msgspec.Struct, gc=False):
    level: float
    since: float
    full_at: float


class MemoryRateLimiter:
    """A `RateLimiter` that never needs to ask. Buckets are `share` of their rules' sizes."""

    def __init__(self, *, monotonic: Callable[[], float], share: float = 1.0) -> None:
        self._monotonic = monotonic
        self._share = share
        self._buckets: dict[str, _Bucket] = {}
        self._sweep_at = _FIRST_SWEEP
        self._admitted = 0
        self._refused = 0

    def try_admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide."""
        now = self._monotonic()
        buckets = [self._bucket(charge, now) for charge in charges]
        if any(
            charge.amount > bucket.level + TOLERANCE
            for charge, bucket in zip(charges, buckets, strict=True)
        ):
            self._refused += 1
            return refusal(charges, [bucket.level for bucket in buckets], self._share)
        policies = []
        for charge, bucket in zip(charges, buckets, strict=True):
            bucket.level -= charge.amount
            missing = capacity(charge.rule, self._share) - bucket.level
            bucket.full_at = now + missing / (rate(charge.rule) * self._share)
            policies.append(policy(charge.rule, bucket.level))
        self._admitted += 1
        return Decision(allowed=True, policies=tuple(policies))

    def spender(self, charges: Sequence[Charge]) -> Spender:
        """Return what takes `charges` again and again."""
        return AskingSpender(charges, ask=self.try_admit)

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide; there is nobody to ask."""
        return self.try_admit(charges)

    def statistics(self) -> LimiterStatistics:
        """Return counts for metrics and tests."""
        return LimiterStatistics(admitted_by_share=self._admitted, refused=self._refused)

    def _bucket(self, charge: Charge, now: float) -> _Bucket:
        bucket = self._buckets.get(charge.bucket)
        if bucket is None:
            self._make_room(now)
            bucket = _Bucket(capacity(charge.rule, self._share), now, now)
            self._buckets[charge.bucket] = bucket
        else:
            elapsed = now - bucket.since
            bucket.level = refilled(bucket.level, elapsed, charge.rule, self._share)
            bucket.since = now
        return bucket

    def _make_room(self, now: float) -> None:
        """Forget the buckets that are full by now: a new one would be the same."""
        if len(self._buckets) < self._sweep_at:
            return
        kept = {name: bucket for name, bucket in self._buckets.items() if bucket.full_at > now}
        self._buckets = kept
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(kept))
