"""Computes a backend's concurrency limit in items, from the latencies of its results.

`Fleet.shed` refuses requests while all available backends are at their limit.
`EndpointState` judges their health. The limit follows the gradient of latencies, like Gradient2
of Netflix's concurrency-limits.
While latencies are about as usual, the limit grows by a fraction of its square root. When they are
more than twice as long, items queue, and the limit shrinks by the ratio.
"""

import math

import msgspec

LEAST = 8.0
"""The first limit of a recovered backend, in items."""
_MAX_ITEMS = 4096.0
# The factor on the usual latency above which items are assumed to queue.
_TOLERANCE = 2.0
_SMOOTHING = 0.1
# The usual latency rises slowly, so that the latency of a queue does not become usual. It falls
# faster.
_UP, _DOWN = 0.005, 0.05


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the items `allowed` in flight, and the `usual` latency in seconds (0: unknown)."""

    allowed: float
    usual: float = 0.0


UNLIMITED = Limit(allowed=_MAX_ITEMS)
CAUTIOUS = Limit(allowed=LEAST)


def after_answer(limit: Limit, seconds: float, in_flight: int, answers: int = 1) -> Limit:
    """Return `limit` after a result that took `seconds`, with `in_flight` items in flight.

    Several `answers` that arrive together weigh as much as one after the other.
    """
    usual = limit.usual
    if not usual:
        return Limit(allowed=limit.allowed, usual=seconds)
    share = _UP if seconds > usual else _DOWN
    usual += (share if answers == 1 else _weight(share, answers)) * (seconds - usual)
    base, gradient = limit.allowed, 1.0
    if seconds > _TOLERANCE * usual:
        gradient = max(0.5, _TOLERANCE * usual / seconds)
        # Shrink from the items in flight: a limit far above them would take long to have an effect.
        base = min(base, 2.0 * max(in_flight, LEAST))
    elif 2 * in_flight < base:
        # If the limit is not reached, nothing is known about a higher one.
        return Limit(allowed=base, usual=usual)
    target = base * gradient + math.sqrt(base)
    share = _SMOOTHING if answers == 1 else _weight(_SMOOTHING, answers)
    allowed = base + share * (target - base)
    return Limit(allowed=min(_MAX_ITEMS, max(LEAST, allowed)), usual=usual)


def _weight(share: float, answers: int) -> float:
    return 1.0 - (1.0 - share) ** answers
