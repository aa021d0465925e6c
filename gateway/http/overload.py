"""Decides when a worker lacks processor time, and how many requests it then admits.

The measure is the event-loop iteration: whoever sends a request during one waits until the next,
and passes a few of them until the answer. As CoDel (RFC 8289) says, a queue that comes and goes is
none; as in WeChat's DAGOR, the queueing delay decides, not the use of a processor.
What is admitted is bounded by Little's law: a request costs so many seconds of the loop, hence so
many fit into an iteration. How long that may be is a part of the time that callers allow, so that
nobody is refused who would be answered in time. What is offered does not enter, so that a larger
spike is no other case, and nothing is there to oscillate.
"""

import math

import msgspec

from gateway.types import Criticality

FEWEST = 4
"""New requests of an iteration that are no queue; so many are always admitted."""
_WATCHED = 0.0125
"""Seconds of an iteration and the one before it from which on they are watched: they grow."""
_LONG = 0.05
"""Seconds of an iteration that follows on such, and counts whatever it has read."""
_STANDING = 2
"""Such iterations on end are a queue; one alone may be a collection of garbage, or a reload."""
_HOLD = 1.0
"""Seconds after the last of them for which admission stays bounded."""
_FADING = 0.7
"""The weight of earlier iterations in the cost of a request, against each new one."""
_MOST_GROWTH = 4.0
"""By so much the cost may grow in an iteration: a pause is not the work of the requests in it."""
_STAGES = 4
"""Iterations between a missed request's head and its answer: cache, call, result, answer."""
_SHARE = 0.05
"""The part of a caller's time that an iteration may take: a request passes several, and backends
need the rest."""
_PARTS = {Criticality.SHEDDABLE: 0.25, Criticality.DEFAULT: 1.0, Criticality.CRITICAL: 2.0}
"""Parts of the bound, by criticality: `sheddable` ends first."""


class Iteration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An iteration that took `length` seconds of work, and read so many new requests."""

    length: float
    requests: int
    admitted: int
    ended: float
    """By a monotonic clock."""


class Overload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the iterations so far say; times are of one monotonic clock."""

    length: float = 0.0
    """Of the last iteration."""
    earlier: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Lengths of those before it, the latest first."""
    lengths: float = 0.0
    """Of the last iterations together, older ones faded; so is `admitted`."""
    admitted: float = 0.0
    cost: float = 0.0
    """Seconds of the loop that a request takes; 0: unknown."""
    long_ones: int = 0
    """Iterations on end that were long and had new requests."""
    sheds_until: float = -math.inf
    """Until then admission is bounded."""


CALM = Overload()


def after_iteration(before: Overload, latest: Iteration) -> Overload:
    """Return what is known after one more iteration."""
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
    """Tell whether an iteration that has admitted so many admits no more of a criticality.

    The request may take `allowed` seconds, and an iteration `most` whatever that is.
    """
    part = _PARTS[criticality]
    length = min(most, _SHARE * allowed)
    return admitted * state.cost > length * part and admitted >= FEWEST * min(1.0, part)


def is_too_late(state: Overload, allowed: float) -> bool:
    """Tell whether a request that may take `allowed` would be late by this worker's part alone.

    It has waited for up to an iteration already. Those that follow are expected to be as long as
    the second longest of the last four: the longest may have been a pause.
    """
    usual = sorted((state.length, *state.earlier))[-2]
    return allowed < state.length + (_STAGES - 1) * usual
