"""Computes the levels of token buckets with pure functions.

The Lua script in `gateway.rate_limit.script` computes levels in Redis in the same way.
"""

from collections.abc import Sequence
from math import inf

from typing_extensions import override

from sluicegate.gateway.rate_limit.base import Charge, Decision, PolicyState
from sluicegate.gateway.types import CONCURRENT, Rule

# The largest rounding error of a sum of units.
TOLERANCE = 1e-6
_SOON = 1.0
"""Seconds that a refused caller is told to wait if units come back only when other requests end."""


class RegionalRule(Rule, frozen=True, kw_only=True, cache_hash=True):
    """Limits a region to its share of a rule: `capacity` units out of the rule's `full_limit`."""

    full_limit: int
    unknown_level: int
    """The level at which a bucket starts if Redis has no record of the bucket. It is below
    `capacity` for a while after the region's share has grown, because other regions may have used
    the difference."""
    grown_for: float = inf
    """Seconds since the region's share grew. A bucket that was last used before the share grew
    refills to at most `unknown_level` units."""
    former_shares: tuple[tuple[float, float], ...] = ()
    """The region's shares before the share grew, as fractions of `full_limit`. Each is followed by
    the seconds for which it applied. The oldest share is the first."""

    @property
    @override
    def limit(self) -> int:
        return self.full_limit


def rate(rule: Rule) -> float:
    """Return the refill rate of `rule` in units a second; 0 for quotas and `concurrent`."""
    return max(rule.capacity, TOLERANCE) / rule.window if rule.window > 0 else 0.0


def refilled(
    level: float, elapsed: float, rule: Rule, fraction: float = 1.0, held: float = 0.0
) -> float:
    """Return the level of a bucket after it was refilled for `elapsed` seconds.

    The capacity of the bucket is `fraction` of the capacity of `rule`. Level and reserved units
    (`held`) together never exceed the capacity. If a limit was lowered below the reserved units,
    the level is zero.
    """
    level += max(0.0, elapsed) * rate(rule) * fraction
    return min(max(capacity(rule, fraction) - held, min(level, 0.0)), level)


def capacity(rule: Rule, fraction: float = 1.0) -> float:
    """Return `fraction` of the capacity of `rule`, but at least one unit."""
    return min(rule.capacity, max(1.0, rule.capacity * fraction))


def policy(rule: Rule, level: float, *, ends: float = 0.0) -> PolicyState:
    """Return the state of `rule` when its bucket is at `level`.

    For a quota, `ends` is the number of seconds until the quota's period ends.
    """
    remaining = int(level + TOLERANCE) if level > 0 else 0
    reset = (rule.capacity - level) / rate(rule) if rule.window > 0 else ends
    return PolicyState(rule=rule, remaining=remaining, reset=max(0.0, reset))


def refusal(
    charges: Sequence[Charge],
    levels: Sequence[float],
    fraction: float = 1.0,
    *,
    ends: Sequence[float] = (),
) -> Decision:
    """Return a decision that refuses `charges`.

    `levels` holds the level of each charge's bucket. At least one charge must exceed its level.
    `ends` holds, for each charge, the seconds until its quota's period ends. Rules in shadow mode
    are left out of the decision.
    """
    policies: list[PolicyState] = []
    longest, violated = 0.0, None
    for charge, level, end in zip(charges, levels, ends or [0.0] * len(charges), strict=True):
        if charge.rule.shadow:
            continue
        state = policy(charge.rule, level, ends=end)
        missing = charge.amount - level
        if missing > TOLERANCE:
            wait = inf
            if charge.amount <= charge.rule.limit:
                wait = _wait(charge, missing, fraction, end)
                state = PolicyState(rule=charge.rule, remaining=state.remaining, reset=wait)
            if wait > longest:
                longest, violated = wait, charge.rule
        policies.append(state)
    return Decision(allowed=False, policies=tuple(policies), violated=violated, retry_after=longest)


def _wait(charge: Charge, missing: float, fraction: float, ends: float) -> float:
    rule = charge.rule
    if charge.amount > rule.capacity:  # more than this region's share, but within the full limit
        return rule.window or _SOON
    if rule.window > 0:
        return missing / (rate(rule) * fraction)
    return _SOON if rule.unit == CONCURRENT else max(_SOON, ends)
