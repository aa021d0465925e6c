"""What a rate limiter is asked and answers."""

from collections.abc import Sequence
from math import inf
from typing import Protocol

import msgspec

from gateway.types import Rule


class Charge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`amount` units of `rule`'s, to be taken from the bucket of that name."""

    rule: Rule
    bucket: str
    amount: int
    hold: bool = False
    """The amount is an estimate, held until it is settled; see `Hold`."""


class Hold(Protocol):
    """Units that were taken for work under way, and are to be settled once it has ended."""

    def settle(self, spent: int) -> None:
        """Keep what was `spent`; the rest goes back."""
        ...


class PolicyState(msgspec.Struct, frozen=True, gc=False):
    """How a rule stands, as far as this worker knows.

    `reset` is the seconds until its bucket is full or, where the rule refused, until it would not.
    """

    rule: Rule
    remaining: int
    reset: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all charges were taken. A refused decision took nothing.

    `violated` is the rule that keeps the caller waiting longest. `retry_after` is infinite where
    waiting does not help.
    """

    allowed: bool
    policies: tuple[PolicyState, ...]
    violated: Rule | None = None
    retry_after: float = 0.0
    shadowed: tuple[Rule, ...] = ()
    """Rules that are only watched, and would have refused."""
    holds: tuple[Hold, ...] = ()
    """What the charges to be held took, in their order."""

    @property
    def impossible(self) -> bool:
        """The request asks for more than a bucket ever holds: it must be made smaller."""
        return self.retry_after == inf


class LimiterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions since the start, by how they were made, and what leasing cost."""

    admitted_by_lease: int = 0
    admitted_by_redis: int = 0
    admitted_by_share: int = 0
    """While Redis was down."""
    refused: int = 0
    shadowed: int = 0
    """Charges that rules in shadow mode would have refused."""
    asked: int = 0
    """Round trips."""
    failures: int = 0
    leased: int = 0
    """Units held now to be spent."""
    reserved: int = 0
    """Units held now for work under way."""
    lapsed: int = 0
    """Units of leases that ended before they were spent or given back."""
    breaker: str = "closed"
    breaker_opened: int = 0


class RateLimiter(Protocol):
    """Takes charges from token buckets: all of them, or none.

    In no window of `t` seconds is more admitted from a bucket than its capacity and what it is
    refilled with in `t`. Nothing is raised: without Redis a worker admits a configured share.
    """

    def try_admit(self, charges: Sequence[Charge]) -> Decision | None:
        """Decide from what this worker holds; `None` when it must ask."""
        ...

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide, asking Redis where needed. May be cancelled; charges may be lost then."""
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
