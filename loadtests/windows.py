"""Checks from outside that no window admitted more requests than a limit allows.

A caller only knows that a request was admitted at some time between its sending and its answer. So
a window counts only requests that were certainly admitted within the window: requests sent after
its start and answered before its end. Caller and Redis run on one machine, so their clocks agree.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from sluicegate.gateway.types import Rule


class AdmittedRequest(NamedTuple):
    """A request that was admitted some time between `sent` and `came`."""

    sent: float
    came: float


def most_over_the_limit(admitted: Sequence[AdmittedRequest], rule: Rule) -> float:
    """Return by how many units the worst window exceeds `rule`; negative if no window does.

    A window of `t` seconds may admit `capacity + t * capacity / window`. It is enough to look at
    windows that begin when a request is sent and end when an answer comes.
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
    """Return how many units `rule` admits in `duration` seconds, if the bucket is full at first."""
    return rule.capacity + duration * rule.capacity / rule.window


def local_share(rule: Rule, *, share: float, workers: int, away: float) -> float:
    """Return how many units `workers` admit at most while Redis is away for `away` seconds."""
    return workers * (max(1.0, share * rule.capacity) + away * share * rule.capacity / rule.window)


LARGEST_LEASE = 0.02
"""The share of a limit that a worker may lease, or may admit in advance while Redis is late."""
SLOWEST_CALL = 0.2
"""The longest call of a healthy Redis in seconds. Later callers wait for the next call."""


def failover_bound(
    rule: Rule, *, share: float, workers: int, unaware: float, offered: float
) -> float:
    """Return by how many units a window with a failover of the state Redis may exceed `rule`.

    The excess has two causes. First, without Redis, each worker admits its local share, until it
    finds that Redis is back. This takes `unaware` seconds in all. Second, the replica may lack the
    last units that the primary granted. These are at most the units of one call of each worker: a
    worker sends its next call only after a reply, and the primary sends the reply and the replica's
    copy at the same time. `offered` is in units a second.
    """
    alone = local_share(rule, share=share, workers=workers, away=unaware)
    lease = 1 + 2 * int(LARGEST_LEASE * rule.capacity)
    return alone + workers * lease + ceil(offered * SLOWEST_CALL)


def bound_ahead(rule: Rule, *, workers: int, by_share: float) -> float:
    """Return by how many units a window may exceed `rule` while Redis answers slowly.

    Each worker may admit its part of the limit before Redis answers. `by_share` is the number of
    units that were admitted in this way.
    """
    return min(workers * LARGEST_LEASE * rule.capacity, by_share)
