"""The arithmetic of token buckets, as functions of values; the Lua script does the same."""

from collections.abc import Sequence
from math import inf

from gateway.rate_limit.base import Charge, Decision, PolicyState
from gateway.types import Rule

# What sums of fractions may be off by; far below one unit.
TOLERANCE = 1e-6


def rate(rule: Rule) -> float:
    """Return the units a second that `rule`'s bucket is refilled with; never quite 0."""
    return max(rule.capacity, TOLERANCE) / rule.window


def refilled(level: float, elapsed: float, rule: Rule, share: float = 1.0) -> float:
    """Return the level of a bucket, `share` of `rule`'s size, `elapsed` seconds on."""
    return min(capacity(rule, share), level + max(0.0, elapsed) * rate(rule) * share)


def capacity(rule: Rule, share: float = 1.0) -> float:
    """Return what a bucket of `share` of `rule`'s size holds: one unit, where the rule has one."""
    return min(rule.capacity, max(1.0, rule.capacity * share))


def policy(rule: Rule, level: float) -> PolicyState:
    """Return how `rule` stands at `level`."""
    remaining = int(level + TOLERANCE) if level > 0 else 0
    reset = (rule.capacity - level) / rate(rule)
    return PolicyState(rule=rule, remaining=remaining, reset=max(0.0, reset))


def refusal(charges: Sequence[Charge], levels: Sequence[float], share: float = 1.0) -> Decision:
    """Return the decision that refuses `charges`, one of which is over its bucket's level."""
    policies: list[PolicyState] = []
    longest, violated = 0.0, None
    for charge, level in zip(charges, levels, strict=True):
        state = policy(charge.rule, level)
        missing = charge.amount - level
        if missing > TOLERANCE:
            wait = inf
            if charge.amount <= charge.rule.capacity:
                wait = missing / (rate(charge.rule) * share)
                state = PolicyState(rule=charge.rule, remaining=state.remaining, reset=wait)
            if wait > longest:
                longest, violated = wait, charge.rule
        policies.append(state)
    return Decision(allowed=False, policies=tuple(policies), violated=violated, retry_after=longest)
