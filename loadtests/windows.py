"""Checks from outside that every window of admitted requests was within a limit.

A caller sees only that a request was admitted between sending and the answer. A window counts the
requests surely admitted in it: sent after its start and answered before its end. Caller and Redis
share a machine, so their clocks do not differ.
"""

from collections.abc import Sequence
from math import ceil
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


LARGEST_LEASE = 0.02
"""The part of a limit that a worker may have leased, or be ahead by while Redis is late."""
SLOWEST_CALL = 0.2
"""The longest call of a healthy Redis in seconds; callers of that time may wait for the next."""


def failover_bound(
    rule: Rule, *, share: float, workers: int, unaware: float, offered: float
) -> float:
    """Return by how many units a window with a failover of the state Redis may be over `rule`.

    Each worker admits its local share while Redis is away and until it finds that it is back,
    `unaware` seconds in all. What the primary granted last may be unknown to the replica: one call
    of each worker, as the next leaves only after its reply, which the primary sends together with
    the replica's copy. `offered` is in units a second.
    """
    alone = local_share(rule, share=share, workers=workers, away=unaware)
    lease = 1 + 2 * int(LARGEST_LEASE * rule.capacity)
    return alone + workers * lease + ceil(offered * SLOWEST_CALL)


def bound_ahead(rule: Rule, *, workers: int, by_share: float) -> float:
    """Return by how many units a window may be over `rule` while Redis answers, but late.

    Each worker may be ahead of Redis by its part; `by_share` counts all admissions ahead.
    """
    return min(workers * LARGEST_LEASE * rule.capacity, by_share)
