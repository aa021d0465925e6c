"""Checks from outside that every window of admitted requests was within a limit.

A caller does not see when a request was admitted, only that it was between sending and the answer.
A window counts the requests that were surely admitted in it: sent after its start and answered
before its end. Caller and Redis share a machine here, so their clocks do not differ.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gateway.types import Rule


class AdmittedRequest(NamedTuple):
    """A request admitted some time between `sent` and `came`."""

    sent: float
    came: float


def most_over_the_limit(admitted: Sequence[AdmittedRequest], rule: Rule) -> float:
    """Return by how many units the worst window is over `rule` (or under: negative).

    A window of `t` seconds may have `capacity + t * capacity / window`. All that begin as some
    request is sent and end as some answer comes are looked at: the others have no more in them.
    """
    refill = rule.capacity / rule.window
    ends = np.sort(np.array([one.came for one in admitted]))
    within = np.zeros(len(ends))
    worst = -float(rule.capacity)
    for one in sorted(admitted, reverse=True):
        first = int(np.searchsorted(ends, one.came))
        within[first:] += 1
        over = within[first:] - rule.capacity - refill * (ends[first:] - one.sent)
        worst = max(worst, float(over.max()))
    return worst


def bound(rule: Rule, duration: float) -> float:
    """Return the most that `rule` admits in `duration` seconds that begin with a full bucket."""
    return rule.capacity + duration * rule.capacity / rule.window


def local_share(rule: Rule, *, share: float, workers: int, away: float) -> float:
    """Return the most that `workers` admit by themselves while Redis is away for `away` seconds."""
    return workers * (max(1.0, share * rule.capacity) + away * share * rule.capacity / rule.window)
