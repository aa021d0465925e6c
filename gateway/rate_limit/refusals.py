"""Builds the errors of requests that exceed a limit."""

from gateway.errors import RateLimited
from gateway.rate_limit.base import Decision


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
