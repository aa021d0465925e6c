"""Tracks the units of a bucket that a worker leases, and decides how many to lease next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from sluicegate.gateway.rate_limit.base import Charge, Decision, PolicyState
from sluicegate.gateway.rate_limit.bucket import policy, rate, refusal
from sluicegate.gateway.types import CONCURRENT, Rule

LEASE = 2.0
"""Seconds that a lease lasts in Redis. Units that the worker does not spend, renew or give back
within this time are lost."""
_USABLE = 1.8
"""Seconds after its request for a lease during which a worker may spend the lease.

It is less than `LEASE`, so that the worker stops before the lease ends in Redis."""
_HORIZON = 0.1
"""Seconds of a worker's spending that a lease should cover. If `_TRIPS` round trips to Redis take
longer, a lease should cover the duration of these round trips."""
_TRIPS = 6.0
_LARGEST_FRACTION = 0.02
_SHORTEST = 0.001
_LONGEST_REFUSAL = 0.1
"""Seconds for which a worker repeats a refusal without a call to Redis.

The time is short because other workers may give units back to Redis meanwhile."""


# A dataclass with slots, not a `msgspec.Struct`: each cache hit writes to leases, and a write to a
# slot costs a quarter less.
@dataclass(slots=True, eq=False)
class Lease:
    """Holds units of one bucket that this worker may spend until `usable_until`.

    Redis has deducted these units from the bucket already. `level` is the bucket's level in Redis
    at time `at`. `spent` counts the units that this worker has spent since `at`.
    """

    rule: Rule
    available: int = 0
    usable_until: float = -inf
    level: float = 0.0
    at: float = -inf
    spent: int = 0
    used_at: float = -inf
    renew_below: int = 0
    """The worker renews the lease when fewer units than this are available. It is 0 while a renewal
    is under way."""
    refused_amount: int = 0
    refused_until: float = -inf
    refill: float = 0.0
    """The refill rate of `rule`, in units a second."""
    reserved: int = 0
    """Units reserved for admitted work. Like `available` units, they count towards the bucket's
    capacity."""
    lapses: int = 0
    """How many times reserved units expired in Redis before they were settled."""
    round_trip: float = 0.0
    """Seconds from the request to the grant, when Redis last granted units."""
    ends_at: float = inf
    """The time when a quota's period ends."""
    overdrawn: int = 0
    """Units that were spent before Redis granted them. The next grant is reduced by this number."""
    requested_rule: Rule | None = None
    """The full rule of the charge for which this lease was last requested.

    The attribute `rule` is the same rule reduced to the region's share."""

    def __post_init__(self) -> None:
        self.refill = rate(self.rule)

    def is_under(self, rule: Rule) -> bool:
        """Return whether the lease was requested under `rule`, not under an earlier version."""
        return self.requested_rule is rule or self.requested_rule == rule

    def set_rule(self, rule: Rule) -> None:
        """Replace the rule, because the configuration or the region's share may have changed."""
        if rule is not self.rule:
            self.rule = rule
            self.refill = rate(rule)

    def usable(self, now: float) -> int:
        """Return the number of units that this worker may spend at `now`."""
        return self.available if self.usable_until > now else 0

    def is_idle(self, now: float, idle: float) -> bool:
        """Return whether units are available, and none was spent in the last `idle` seconds.

        If the rule limits concurrent requests, units count as idle as soon as no request uses them,
        because another worker may need them.
        """
        is_unused = self.rule.unit == CONCURRENT or now - self.used_at >= idle
        return is_unused and self.usable(now) > 0

    def refuses(self, amount: int, now: float) -> bool:
        """Return whether a recent refusal shows that Redis would refuse `amount`.

        This is the case if Redis refused `amount` or less in the last 0.1 seconds, and the bucket
        cannot have refilled to `amount` since.
        """
        if now >= self.refused_until or amount < self.refused_amount:
            return False
        return self.level_at(now) < amount

    def level_at(self, now: float) -> float:
        """Estimate the units that can be spent: the leased units, and the units in Redis.

        The estimate assumes that no other worker has taken units from Redis since `at`.
        """
        level = self.level + (now - self.at) * self.refill
        return min(level, self.rule.capacity) + self.usable(now)

    def spend(self, amount: int, now: float) -> tuple[int, float]:
        """Spend `amount` units; return the remaining units and the seconds until the reset.

        Every request that a lease admits runs this method. For speed, it calls no other function,
        unless the bucket does not refill over time.
        """
        self.available = available = self.available - amount
        self.spent += amount
        self.used_at = now
        refill = self.refill
        if not refill:
            state = self.state(now)
            return state.remaining, state.reset
        capacity = self.rule.capacity
        level = self.level + (now - self.at) * refill
        if level < capacity and self.usable_until > now:
            level += available
        if level >= capacity:
            return capacity, 0.0
        return int(level) if level > 0.0 else 0, (capacity - level) / refill

    def state(self, now: float) -> PolicyState:
        """Estimate the remaining units and the seconds until the reset."""
        level = min(self.level_at(now), self.rule.capacity)
        return policy(self.rule, level, ends=max(0.0, self.ends_at - now))

    def wanted(self, amount: int, now: float) -> int:
        """Return how many units to lease in addition to `amount`, the units that are taken now."""
        if self.rule.unit == CONCURRENT:
            return 0  # another worker could not use a unit that this worker keeps in stock
        if self.at == -inf:
            expected = float(amount)
        else:
            horizon = max(_HORIZON, _TRIPS * self.round_trip)
            expected = self.spent / max(now - self.at, _SHORTEST) * horizon
        return min(int(expected), int(self.rule.capacity * _LARGEST_FRACTION))

    def may_overdraw(self, amount: int, now: float) -> bool:
        """Return whether this worker may spend `amount` units before Redis answers.

        The bucket must be at least half full, and the overdraft must be a small fraction of the
        limit. Redis can then almost certainly provide the units.
        """
        if self.rule.unit == CONCURRENT or self.at == -inf:
            return False
        if 2 * self.level_at(now) < self.rule.capacity:
            return False
        return self.overdrawn + amount <= int(self.rule.capacity * _LARGEST_FRACTION)

    def overdraw(self, amount: int) -> None:
        """Record that `amount` units were spent before Redis answered."""
        self.overdrawn += amount
        self.spent += amount

    def release(self, now: float) -> int:
        """Stop spending, and return the number of units to give back to Redis."""
        units = self.usable(now)
        self.available = 0
        return units

    def keep_reserved(self, now: float) -> int:
        """Return the number of reserved units.

        If the reserved units have expired in Redis, they count as spent from then on, and the
        result is 0.
        """
        if self.reserved and self.usable_until <= now and self.rule.unit != CONCURRENT:
            self.lapses += 1
            self.reserved = 0
        return self.reserved

    def record_level(self, *, level: float, amount: int, now: float, ends: float) -> None:
        """Record the bucket's level in Redis after `amount` units were taken from it.

        For a quota, `ends` is the number of seconds until the quota's period ends.
        """
        self.level, self.at, self.spent = level, now, amount
        self.ends_at = now + ends
        if amount:
            self.used_at = now

    def add_grant(self, units: int, *, sent_at: float, now: float) -> None:
        """Add to the lease the `units` that Redis has granted.

        The worker asked Redis for them at `sent_at`. Units that were spent before Redis granted
        them are first deducted from `units`.
        """
        repaid = min(self.overdrawn, units)
        self.overdrawn -= repaid
        self.available = self.usable(now) + units - repaid
        self.usable_until = max(self.usable_until, sent_at + _USABLE)
        self.round_trip = now - sent_at
        # When the renewal starts, the remaining units must last until Redis responds.
        self.renew_below = self.available // (4 if _TRIPS * self.round_trip < _HORIZON else 2)

    def record_refusal(self, amount: int, *, level: float, now: float) -> None:
        """Record that Redis refused `amount` units."""
        wait = (amount - level) / self.refill if self.refill else _LONGEST_REFUSAL
        self.refused_amount = amount
        self.refused_until = now + min(wait, _LONGEST_REFUSAL)


class Leases(dict[str, Lease]):
    """Maps the name of a bucket to this worker's lease."""

    def of(self, charge: Charge) -> Lease:
        """Return the lease on the bucket of `charge`, or a new lease without units."""
        lease = self.get(charge.bucket)
        if lease is None:
            lease = self[charge.bucket] = Lease(charge.rule)
        return lease

    def must_refuse(self, charges: Sequence[Charge], now: float) -> bool:
        """Return whether a charge exceeds its whole limit, or was refused by Redis a moment ago."""
        for charge in charges:
            if charge.rule.shadow:
                continue
            lease = self.get(charge.bucket)
            if charge.amount > charge.rule.limit:
                return True
            if lease and lease.is_under(charge.rule) and lease.refuses(charge.amount, now):
                return True
        return False

    def refusal(self, charges: Sequence[Charge], now: float) -> Decision:
        """Return the refusal of `charges`, based on the levels that the leases estimate."""
        levels, ends = [], []
        for charge in charges:
            lease = self.get(charge.bucket)
            levels.append(lease.level_at(now) if lease else float(charge.rule.capacity))
            ends.append(lease.ends_at - now if lease and lease.ends_at < inf else 0.0)
        return refusal(charges, levels, ends=ends)

    def may_overdraw(self, charges: Sequence[Charge], now: float) -> bool:
        """Return whether all `charges` may be spent before Redis answers."""
        return all(
            (lease := self.of(charge)).is_under(charge.rule)
            and lease.may_overdraw(charge.amount, now)
            for charge in charges
        )

    def overdraw(self, charges: Sequence[Charge]) -> None:
        """Record that `charges` were spent before Redis answered."""
        for charge in charges:
            self.of(charge).overdraw(charge.amount)


class LeaseReservation:
    """Reserves units of a lease for admitted work; implements `UnitReservation`."""

    __slots__ = ("_amount", "_lapses", "_lease", "_now", "_on_settled")

    def __init__(
        self,
        lease: Lease,
        amount: int,
        *,
        now: Callable[[], float],
        on_settled: Callable[[Lease], None],
    ) -> None:
        lease.reserved += amount
        self._lease = lease
        self._amount = amount
        self._lapses = lease.lapses
        self._now = now
        self._on_settled = on_settled

    def settle(self, spent: int) -> None:
        """Charge `spent` of the reserved units.

        If the lease is still valid, the other reserved units become available again. If the rule
        limits concurrent requests, these units go back to Redis.
        """
        lease, amount = self._lease, self._amount
        self._amount = 0
        if not amount:
            return
        has_lapsed = lease.lapses != self._lapses
        if not has_lapsed:
            lease.reserved -= amount
        if has_lapsed or lease.usable_until <= self._now():
            # The reserved units count as spent in Redis. Units beyond them do not.
            lease.overdrawn += max(0, spent - amount)
        else:
            # If more units were spent than reserved, the difference is taken from the lease. What
            # the lease lacks is deducted from the next grant.
            left = lease.available + amount - spent
            lease.available = max(0, left)
            lease.overdrawn += max(0, -left)
        if not has_lapsed:
            self._on_settled(lease)
