"""Builds the decisions and errors of requests that exceed a limit."""

from collections.abc import Sequence
from math import inf

from gateway.errors import RateLimited
from gateway.rate_limit.base import Charge, Decision
from gateway.rate_limit.bucket import refusal
from gateway.rate_limit.lease import Lease


def refusal_from_leases(
    charges: Sequence[Charge], leases: Sequence[Lease | None], now: float
) -> Decision:
    """Return the refusal of `charges`, with the levels that their leases estimate."""
    levels = [
        lease.level_at(now) if lease is not None else float(charge.rule.capacity)
        for charge, lease in zip(charges, leases, strict=True)
    ]
    ends = [
        lease.ends_at - now if lease is not None and lease.ends_at < inf else 0.0
        for lease in leases
    ]
    return refusal(charges, levels, ends=ends)


def beyond_limit(decision: Decision) -> RateLimited:
    """Return the error of a request that `decision` refused."""
    rule = decision.violated
    name = rule.name if rule is not None else "unknown"
    unit = rule.unit if rule is not None else "requests"
    if decision.impossible and rule is not None:
        return RateLimited(
            f"The limit `{name}` never allows more than {rule.limit} {unit} at once;"
            f" send fewer {unit} in one request."
        )
    if rule is not None and rule.period:
        return RateLimited(
            f"The {rule.period}'s {rule.limit} {unit} of `{name}` are used up; they begin"
            f" anew with the next {rule.period}."
        )
    return RateLimited(
        f"The limit `{name}` of {unit} is used up; wait as `Retry-After` says, or send fewer."
    )
