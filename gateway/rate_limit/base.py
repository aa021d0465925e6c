"""Defines the interface of rate limiters, and the values that they take and return."""

from collections.abc import Sequence
from math import inf
from typing import Protocol

import msgspec

from gateway.types import Rule


class Charge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Takes `amount` units of `rule` from the bucket of that name."""

    rule: Rule
    bucket: str
    amount: int
    hold: bool = False
    """The amount is an estimate, held until it is settled; see `Hold`."""


class Hold(Protocol):
    """Holds units that were taken for work under way, until that has ended."""

    def settle(self, spent: int) -> None:
        """Charge the `spent` units; the rest goes back."""
        ...


class PolicyState(msgspec.Struct, frozen=True, gc=False):
    """Gives the units that remain of a rule's bucket, as far as this worker knows.

    `reset` is the seconds until the bucket is full or, if the rule refused, until it would admit.
    """

    rule: Rule
    remaining: int
    reset: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Tells whether all charges were taken. A refused decision took nothing.

    `violated` is the rule with the longest wait. `retry_after` is infinite if waiting does not
    help.
    """

    allowed: bool
    policies: tuple[PolicyState, ...]
    violated: Rule | None = None
    retry_after: float = 0.0
    shadowed: tuple[Rule, ...] = ()
    """Rules in shadow mode that would have refused."""
    holds: tuple[Hold, ...] = ()
    """The holds of the charges to be held, in their order."""

    @property
    def impossible(self) -> bool:
        """The request needs more than a bucket can hold: it must be made smaller."""
        return self.retry_after == inf


class LimiterStatistics(msgspec.Struct, kw_only=True):
    """Counts decisions by how they were made, and the cost of leasing, since the start."""

    admitted_by_lease: int = 0
    admitted_by_redis: int = 0
    admitted_by_share: int = 0
    """By the local bucket, while Redis was down."""
    local_decisions: int = 0
    """Decisions of the local bucket, whatever they were."""
    refused: int = 0
    shadowed: int = 0
    """Charges that rules in shadow mode would have refused."""
    asked: int = 0
    """Calls to Redis."""
    failures: int = 0
    leases: int = 0
    leased: int = 0
    """Units on lease now."""
    reserved: int = 0
    """Units reserved now for work under way."""
    lapsed: int = 0
    """Units of leases that expired before they were spent or given back."""
    breaker: str = "closed"
    breaker_opened: int = 0


class RepeatedCharge(Protocol):
    """Takes the same charges each time it is called."""

    def charge(self) -> bytes | None:
        """Take all charges and return the header lines; `None` if it took nothing.

        `None` says that the limiter must decide, by `try_admit` or `admit`: also where a rule in
        shadow mode would refuse, which is for their caller to count.
        """
        ...


class RateLimiter(Protocol):
    """Takes charges from token buckets: all of them, or none.

    In any `t` seconds a bucket admits at most its capacity and its refill in `t`. Nothing is
    raised: without Redis a worker admits a configured fraction of each limit.
    """

    def try_admit(self, charges: Sequence[Charge]) -> Decision | None:
        """Decide from the units that this worker holds; `None` if Redis must decide."""
        ...

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide, with a call to Redis if needed. May be cancelled; charges may be lost then."""
        ...

    def repeated_charge(self, charges: Sequence[Charge]) -> RepeatedCharge:
        """Return an object that takes `charges` each time it is called."""
        ...

    def statistics(self) -> LimiterStatistics:
        """Return counts for metrics and tests."""
        ...


class RegionalLimits(Protocol):
    """Says which part of a rule's limit this region may use, and records the demand for it."""

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return `rule` with this region's present part of the limit of `bucket`."""
        ...

    def record_demand(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Record that callers requested `units`, admitted or not; `level` is what is left since.

        A quota's period `ends` in so many seconds.
        """
        ...


class UndividedLimits:
    """Implements `RegionalLimits` for a gateway without regions: every limit applies in full."""

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return `rule`."""
        return rule

    def record_demand(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Do nothing."""
