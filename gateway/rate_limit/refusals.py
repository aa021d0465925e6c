"""Builds the errors of requests that exceed a limit."""

from sluicegate.gateway.errors import RateLimited
from sluicegate.gateway.rate_limit.base import Decision

MOMENT = 60.0
"""Seconds. Units of a quota that are back so soon are on their way from another region, or the
period ends."""


def beyond_limit(decision: Decision) -> RateLimited:
    """Return the error for a request that `decision` refused."""
    rule = decision.violated
    name = rule.name if rule is not None else "unknown"
    unit = rule.unit if rule is not None else "requests"
    if decision.impossible and rule is not None:
        return RateLimited(
            f"The limit `{name}` never allows more than {rule.limit} {unit} at once;"
            f" send fewer {unit} in one request."
        )
    if rule is not None and rule.period and decision.retry_after > MOMENT:
        return RateLimited(
            f"The quota `{name}` of {rule.limit} {unit} is used up for this {rule.period};"
            f" wait for the next {rule.period}, or ask for a larger quota."
        )
    return RateLimited(
        f"The limit `{name}` of {unit} is used up; retry after the time in `Retry-After`,"
        f" or send fewer {unit}."
    )
