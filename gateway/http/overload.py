"""Decides when a worker lacks processor time, and how many requests it then admits.

The functions measure iterations of the event loop. A request that arrives during an iteration waits
for the next one, and passes several iterations until its answer. As in CoDel (RFC 8289), a queue
that disappears soon is harmless. As in WeChat's DAGOR, the queueing delay decides, not the use of
the processor.

Little's law gives the number of requests to admit: the allowed length of an iteration, divided by
the seconds of the loop that a request costs. The allowed length is a part of the time that the
caller allows, so no request is refused that would be answered in time. The number of arriving
requests does not matter, so the result does not oscillate and a larger spike changes nothing.
"""

import math

import msgspec

from gateway.types import Criticality

FEWEST = 4
"""An iteration always admits this many new requests. Fewer requests are not a queue."""
_WATCHED = 0.0125
"""Seconds of two successive iterations. Longer iterations may be the start of a queue."""
_LONG = 0.05
"""Seconds of an iteration. After a long one, a longer one counts even if it read few requests."""
_STANDING = 2
"""Successive long iterations that are a queue. A single one may be a garbage collection or a
reload."""
_HOLD = 1.0
"""Seconds for which admission stays bounded after the last iteration of a queue."""
_FADING = 0.7
"""The weight of earlier iterations in the cost of a request. A new iteration has weight 1."""
_MOST_GROWTH = 4.0
"""The factor by which the cost may grow in an iteration. Requests do not cause every pause."""
_STAGES = 4
"""Iterations between a missed request's head and its answer: cache, call, result, answer."""
_SHARE = 0.05
"""The part of a caller's time that an iteration may take. A request passes several iterations, and
backends need the rest of the time."""
_PARTS = {Criticality.SHEDDABLE: 0.25, Criticality.DEFAULT: 1.0, Criticality.CRITICAL: 2.0}
"""The part of the allowed length for each criticality. `sheddable` requests are refused first."""


class Iteration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An iteration that took `length` seconds of work, and read `requests` new requests."""

    length: float
    requests: int
    admitted: int
    ended: float
    """The time of its end on a monotonic clock."""


class Overload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Summarizes the iterations so far. All times are on one monotonic clock."""

    length: float = 0.0
    """Seconds of the last iteration."""
    earlier: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds of the three iterations before the last one, the latest first."""
    lengths: float = 0.0
    """The sum of the lengths of iterations, with less weight for older ones. `admitted` is the same
    sum of admitted requests."""
    admitted: float = 0.0
    cost: float = 0.0
    """Seconds of the loop that a request takes. 0 means unknown."""
    long_ones: int = 0
    """The number of successive long iterations that had new requests."""
    sheds_until: float = -math.inf
    """The time until which admission is bounded."""


CALM = Overload()


def after_iteration(before: Overload, latest: Iteration) -> Overload:
    """Return the summary after one more iteration."""
    lengths = _FADING * before.lengths + latest.length
    admitted = _FADING * before.admitted + latest.admitted
    cost = lengths / max(1.0, admitted)
    if before.cost:
        cost = min(cost, _MOST_GROWTH * before.cost)
    long_ones = before.long_ones
    if before.length + latest.length <= _WATCHED:
        long_ones = 0
    elif latest.requests >= FEWEST or (long_ones and latest.length > _LONG):
        long_ones += 1
    is_standing = long_ones >= _STANDING
    second, third, _ = before.earlier
    return Overload(
        length=latest.length,
        earlier=(before.length, second, third),
        lengths=lengths,
        admitted=admitted,
        cost=cost,
        long_ones=long_ones,
        sheds_until=latest.ended + _HOLD if is_standing else before.sheds_until,
    )


def is_beyond(
    state: Overload, criticality: Criticality, *, admitted: int, allowed: float, most: float
) -> bool:
    """Return whether an iteration that has admitted `admitted` requests refuses another one.

    The request may take `allowed` seconds. No iteration may take more than `most` seconds.
    """
    part = _PARTS[criticality]
    length = min(most, _SHARE * allowed)
    return admitted * state.cost > length * part and admitted >= FEWEST * min(1.0, part)


def is_too_late(state: Overload, allowed: float) -> bool:
    """Return whether this worker alone would delay a request beyond its `allowed` seconds.

    The request has already waited for up to one iteration. The next iterations are expected to be
    as long as the second longest of the last four, because the longest may have been a pause.
    """
    usual = sorted((state.length, *state.earlier))[-2]
    return allowed < state.length + (_STAGES - 1) * usual
