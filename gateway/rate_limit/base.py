"""Defines the interface of rate limiters, and the values that they take and return."""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Final, Protocol

import msgspec

from sluicegate.gateway.redis.circuit_breaker import BREAKER_OPEN, BREAKER_OPENINGS
from sluicegate.gateway.telemetry.metrics import LIMIT_DECISIONS
from sluicegate.gateway.types import Rule
from sluicegate.wire.metric_declaration import counter, gauge


class Charge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Says that a request takes `amount` units from the bucket named `bucket`, under `rule`."""

    rule: Rule
    bucket: str
    amount: int
    is_reserved: bool = False
    """Whether the amount is an estimate. An estimate is reserved until `UnitReservation.settle`
    charges the real amount."""


class UnitReservation(Protocol):
    """Units that are reserved for admitted work until the work ends."""

    def settle(self, spent: int) -> None:
        """Charge `spent` units, and give the other reserved units back to the bucket."""
        ...


class PolicyState(msgspec.Struct, frozen=True, gc=False):
    """Holds this worker's estimate of the units that are left in a rule's bucket (`remaining`).

    `reset` is the number of seconds until the bucket is full. If the rule refused a request,
    `reset` is the number of seconds until the rule would admit that request.
    """

    rule: Rule
    remaining: int
    reset: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether the limiter admitted a request (`allowed`).

    The limiter takes all charges of an admitted request, and no charge of a refused request.

    If several rules refused, `violated` is the rule with the longest wait. `retry_after` is
    infinite if the request can never be admitted.
    """

    allowed: bool
    policies: tuple[PolicyState, ...]
    violated: Rule | None = None
    retry_after: float = 0.0
    shadowed: tuple[Rule, ...] = ()
    """Rules in shadow mode that would have refused."""
    reservations: tuple[UnitReservation, ...] = ()
    """The reservations for charges with `is_reserved`, in the order of the charges."""

    @property
    def impossible(self) -> bool:
        """Whether the request needs more units than its bucket can ever hold."""
        return self.retry_after == inf


_ALLOWED: Final = LIMIT_DECISIONS("", "allowed")
_ADMISSIONS: Final = counter(
    "sluicegate_limit_admissions_total",
    "Admitted requests. `source`: `lease`, `redis`, `local_share` (Redis was down or late).",
    "source",
)
_LOCAL_DECISIONS: Final = counter(
    "sluicegate_limit_local_decisions_total",
    "Requests decided by this worker's local share of limits, without Redis and without a lease.",
)
_REFUSALS: Final = counter(
    "sluicegate_limit_refusals_total",
    "Requests that limits refused, including limits on computed rows and tokens.",
)
_SHADOW_REFUSALS: Final = counter(
    "sluicegate_limit_shadow_refusals_total",
    "Charges that limits in shadow mode would have refused.",
)
_LEASES: Final = gauge("sluicegate_limit_leases", "Leases of bucket units that workers hold.")
_LEASED: Final = gauge("sluicegate_limit_leased_units", "Units that workers lease.")
_RESERVED: Final = gauge(
    "sluicegate_limit_reserved_units", "Units reserved for admitted calls to backends."
)
_LAPSED: Final = counter("sluicegate_limit_lapsed_units_total", "Leased units that expired unused.")
_REDIS_CALLS: Final = counter(
    "sluicegate_limit_redis_calls_total",
    "Limiter calls to Redis. `result`: `sent` (all calls), `failed`.",
    "result",
)


class LimiterStatistics(msgspec.Struct, kw_only=True):
    """Counts a limiter's decisions since the limiter started, and the leases that it has now."""

    admitted_by_lease: Annotated[int, _ALLOWED, _ADMISSIONS("lease")] = 0
    admitted_by_redis: Annotated[int, _ALLOWED, _ADMISSIONS("redis")] = 0
    admitted_by_share: Annotated[int, _ALLOWED, _ADMISSIONS("local_share")] = 0
    """Requests that this worker's own buckets admitted while Redis was down or late."""
    local_decisions: Annotated[int, _LOCAL_DECISIONS] = 0
    """All decisions by this worker's own buckets, admissions and refusals."""
    refused: Annotated[int, _REFUSALS] = 0
    shadowed: Annotated[int, _SHADOW_REFUSALS] = 0
    asked: Annotated[int, _REDIS_CALLS("sent")] = 0
    failures: Annotated[int, _REDIS_CALLS("failed")] = 0
    leases: Annotated[int, _LEASES] = 0
    leased: Annotated[int, _LEASED] = 0
    reserved: Annotated[int, _RESERVED] = 0
    lapsed: Annotated[int, _LAPSED] = 0
    """Units whose lease expired before the worker spent them or gave them back."""
    breaker: Annotated[str, BREAKER_OPEN("state_redis")] = "closed"
    breaker_opened: Annotated[int, BREAKER_OPENINGS("state_redis")] = 0


class RepeatedCharge(Protocol):
    """Takes the same charges each time `charge` is called."""

    def charge(self) -> bytes | None:
        """Take all charges and return the header lines, or take nothing and return `None`.

        If the result is `None`, the caller must call `try_admit` or `admit`. This can also happen
        if only a rule in shadow mode would refuse. Such a rule refuses nothing, but `try_admit` and
        `admit` must report it.
        """
        ...


class RateLimiter(Protocol):
    """Takes the charges of requests from token buckets: all charges of a request, or none.

    In any `t` seconds, a bucket admits at most its capacity plus the units that it refills in `t`
    seconds. The methods raise no errors. While Redis is down, each worker decides alone and admits
    a configured fraction of each limit.
    """

    def try_admit(self, charges: Sequence[Charge]) -> Decision | None:
        """Decide with the units that this worker has leased; return `None` if Redis must decide."""
        ...

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide, and call Redis if needed.

        If the call is cancelled, units that it took may be lost.
        """
        ...

    def repeated_charge(self, charges: Sequence[Charge]) -> RepeatedCharge:
        """Return an object that takes `charges` each time it is called."""
        ...

    def statistics(self) -> LimiterStatistics:
        """Return counts for metrics and tests."""
        ...


class RegionalLimits(Protocol):
    """Reduces limits to this region's share, and records the demand on which shares depend."""

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return `rule` with its capacity reduced to this region's share of the limit."""
        ...

    def record_demand(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Record that callers requested `units` units, including units that were refused.

        `level` is the bucket's level after the request. For a quota, `ends` is the number of
        seconds until the quota's period ends.
        """
        ...


class UndividedLimits:
    """Implements `RegionalLimits` for a gateway without regions: each limit applies in full."""

    def rule(self, bucket: str, rule: Rule) -> Rule:
        """Return `rule`."""
        return rule

    def record_demand(
        self, bucket: str, rule: Rule, units: int, *, level: float = inf, ends: float = inf
    ) -> None:
        """Do nothing."""
