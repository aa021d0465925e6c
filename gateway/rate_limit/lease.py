"""What a worker knows and holds of one bucket, and how much of it to ask for."""

from collections.abc import Callable, Sequence
from math import inf

import msgspec

from gateway.rate_limit.base import Charge, PolicyState
from gateway.rate_limit.bucket import policy, rate
from gateway.types import CONCURRENT, Rule

LEASE = 2.0
"""Seconds a lease runs in Redis. What is not spent, renewed or given back by then is lost."""
_USABLE = 1.8
"""Seconds from before the asking that a worker spends it: over before Redis counts it as ended."""
_HORIZON = 0.1
"""Seconds of spending that a lease should cover, or `_TRIPS` answers of Redis if they take more."""
_TRIPS = 6.0
_LARGEST_SHARE = 0.02
_SHORTEST = 0.001
_LONGEST_REFUSAL = 0.1
"""Seconds a refusal is repeated without asking again: others may have given units back."""


class Lease(msgspec.Struct, gc=False):
    """Units of one bucket that were deducted in Redis and may be spent here until `usable_until`.

    `level` is the bucket's level in Redis at `at`; `spent` what was spent here since then.
    """

    rule: Rule
    available: int = 0
    usable_until: float = -inf
    level: float = 0.0
    at: float = -inf
    spent: int = 0
    used_at: float = -inf
    low: int = 0
    """Below this it is time to renew; 0 while that is under way."""
    refused_amount: int = 0
    refused_until: float = -inf
    refill: float = 0.0
    """Units a second; of `rule`."""
    reserved: int = 0
    """Units held for work under way; like those available, they count as being in the bucket."""
    lapses: int = 0
    """How often what was reserved ended in Redis before it was settled."""
    trip: float = 0.0
    """Seconds that Redis took to grant the last units."""
    ends_at: float = inf
    """When a quota's period ends."""
    owed: int = 0
    """Units given out ahead of Redis' answer; what it grants next is first taken for them."""
    asked_for: Rule | None = None
    """The rule of the charges that it was last asked for; `rule` is this region's part of it."""

    def __post_init__(self) -> None:
        self.refill = rate(self.rule)

    def is_of(self, rule: Rule) -> bool:
        """Tell whether it was leased under `rule`, and not under one that was replaced since."""
        return self.asked_for is rule or self.asked_for == rule

    def follow(self, rule: Rule) -> None:
        """Go by `rule` from now on: the configuration may have changed."""
        if rule is not self.rule:
            self.rule = rule
            self.refill = rate(rule)

    def usable(self, now: float) -> int:
        """Return the units that may be spent."""
        return self.available if self.usable_until > now else 0

    def refuses(self, amount: int, now: float) -> bool:
        """Say whether Redis refused as much a moment ago, and nothing says it has it now."""
        if now >= self.refused_until or amount < self.refused_amount:
            return False
        return self.level_at(now) < amount

    def level_at(self, now: float) -> float:
        """Return the best guess of what could be spent: here and, if nobody took it, in Redis."""
        level = self.level + (now - self.at) * self.refill
        return min(level, self.rule.capacity) + self.usable(now)

    def state(self, now: float) -> PolicyState:
        """Return how the rule stands, as far as is known here."""
        # Part of every answer from a lease, so it calls as little as it can.
        rule = self.rule
        if not self.refill:
            return policy(rule, self.level + self.usable(now), ends=max(0.0, self.ends_at - now))
        capacity = rule.capacity
        level = self.level + (now - self.at) * self.refill
        if level < capacity:
            if self.usable_until > now:
                level += self.available
                if level > capacity:
                    return PolicyState(rule, capacity, 0.0)
            return PolicyState(
                rule, int(level) if level > 0.0 else 0, (capacity - level) / self.refill
            )
        return PolicyState(rule, capacity, 0.0)

    def wanted(self, amount: int, now: float) -> int:
        """Return how many units a lease should have beside the `amount` taken now."""
        if self.rule.unit == CONCURRENT:
            return 0  # nobody else may have it while it waits here
        if self.at == -inf:
            expected = float(amount)
        else:
            horizon = max(_HORIZON, _TRIPS * self.trip)
            expected = self.spent / max(now - self.at, _SHORTEST) * horizon
        return min(int(expected), int(self.rule.capacity * _LARGEST_SHARE))

    def may_run_ahead(self, amount: int, now: float) -> bool:
        """Say whether `amount` may be given out before Redis answered.

        As with leases, little of the limit, and of a bucket that was at least half full: Redis will
        have as much.
        """
        if self.rule.unit == CONCURRENT or self.at == -inf:
            return False
        if 2 * self.level_at(now) < self.rule.capacity:
            return False
        return self.owed + amount <= int(self.rule.capacity * _LARGEST_SHARE)

    def run_ahead(self, amount: int) -> None:
        """Take note that `amount` was given out before Redis answered."""
        self.owed += amount
        self.spent += amount

    def surrender(self, now: float) -> int:
        """Stop spending and return how many units may be given back."""
        units = self.usable(now)
        self.available = 0
        return units

    def keep(self, now: float) -> int:
        """Return the units that are reserved.

        Those that ended in Redis count as spent. Work that still runs is counted again.
        """
        if self.reserved and self.usable_until <= now and self.rule.unit != CONCURRENT:
            self.lapses += 1
            self.reserved = 0
        return self.reserved

    def answered(self, *, level: float, amount: int, now: float, ends: float) -> None:
        """Take note of the bucket's level in Redis, after `amount` was taken from it.

        A quota's period ends in `ends` seconds.
        """
        self.level, self.at, self.spent = level, now, amount
        self.ends_at = now + ends
        if amount:
            self.used_at = now

    def granted(self, units: int, *, asked_at: float, now: float) -> None:
        """Add `units` leased from Redis, asked for at `asked_at`, less what is owed."""
        repaid = min(self.owed, units)
        self.owed -= repaid
        self.available = self.usable(now) + units - repaid
        self.usable_until = max(self.usable_until, asked_at + _USABLE)
        self.trip = now - asked_at
        # What is left must last until Redis has answered.
        self.low = self.available // (4 if _TRIPS * self.trip < _HORIZON else 2)

    def refused(self, amount: int, *, level: float, now: float) -> None:
        """Take note that Redis had not `amount` to give."""
        wait = (amount - level) / self.refill if self.refill else _LONGEST_REFUSAL
        self.refused_amount = amount
        self.refused_until = now + min(wait, _LONGEST_REFUSAL)


class Leases(dict[str, Lease]):
    """The leases of a worker, by bucket."""

    def of(self, charge: Charge) -> Lease:
        """Return the lease of what `charge` is taken from; it holds nothing yet if it is new."""
        lease = self.get(charge.bucket)
        if lease is None:
            lease = self[charge.bucket] = Lease(charge.rule)
        return lease

    def refuse(self, charges: Sequence[Charge], now: float) -> bool:
        """Say whether one of `charges` is more than its limit, or Redis would refuse it again."""
        for charge in charges:
            if charge.rule.shadow:
                continue
            lease = self.get(charge.bucket)
            if charge.amount > charge.rule.limit or (
                lease is not None and lease.is_of(charge.rule) and lease.refuses(charge.amount, now)
            ):
                return True
        return False

    def may_run_ahead(self, charges: Sequence[Charge], now: float) -> bool:
        """Say whether all of `charges` may be given out before Redis answered."""
        return all(
            (lease := self.of(charge)).is_of(charge.rule)
            and lease.may_run_ahead(charge.amount, now)
            for charge in charges
        )

    def run_ahead(self, charges: Sequence[Charge]) -> None:
        """Take note that `charges` were given out before Redis answered."""
        for charge in charges:
            self.of(charge).run_ahead(charge.amount)


class LeaseHold:
    """Units of a lease that were reserved for work; see `gateway.rate_limit.base.Hold`."""

    __slots__ = ("_amount", "_lapses", "_lease", "_now", "_settled")

    def __init__(
        self,
        lease: Lease,
        amount: int,
        *,
        now: Callable[[], float],
        settled: Callable[[Lease], None],
    ) -> None:
        lease.reserved += amount
        self._lease = lease
        self._amount = amount
        self._lapses = lease.lapses
        self._now = now
        self._settled = settled

    def settle(self, spent: int) -> None:
        """Keep what was `spent`; the rest may be spent by others, or goes back."""
        lease, amount = self._lease, self._amount
        self._amount = 0
        if lease.lapses != self._lapses or not amount:
            return
        lease.reserved -= amount
        if lease.usable_until > self._now():
            # More than was estimated is taken from what there is.
            lease.available = max(0, lease.available + amount - spent)
        self._settled(lease)
