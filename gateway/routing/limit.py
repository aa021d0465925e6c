"""Computes a backend's limit on items in flight from the latencies of its results.

`Fleet.shed` refuses requests while all available backends are at this limit. Like Gradient2 in
Netflix's library concurrency-limits, this module compares the present latency with the usual
latency. While the two are about equal, the limit grows by a fraction of the limit's square root. If
the present latency is more than twice the usual latency, items are assumed to queue, and the limit
shrinks in proportion to the usual latency divided by the present latency.
"""

import math

import msgspec

LEAST = 8.0
"""The limit with which a recovered backend starts, in items."""
_MAX_ITEMS = 4096.0
# Items are assumed to queue if latency is longer than the usual latency times this factor.
_TOLERANCE = 2.0
_SMOOTHING = 0.1
# The usual latency falls fast, but rises slowly, so that the latency of queued items does not
# become the usual latency.
_UP, _DOWN = 0.005, 0.05


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number of items that are `allowed` in flight, and the `usual` latency in seconds.

    The usual latency is 0 while it is unknown.
    """

    allowed: float
    usual: float = 0.0


UNLIMITED = Limit(allowed=_MAX_ITEMS)
CAUTIOUS = Limit(allowed=LEAST)


def after_answer(limit: Limit, seconds: float, in_flight: int, answers: int = 1) -> Limit:
    """Return `limit` after a result that took `seconds`, with `in_flight` items in flight.

    If several results arrive together, `answers` is their number. They count as if they had arrived
    one by one.
    """
    usual = limit.usual
    if not usual:
        return Limit(allowed=limit.allowed, usual=seconds)
    share = _UP if seconds > usual else _DOWN
    usual += (share if answers == 1 else _weight(share, answers)) * (seconds - usual)
    base, gradient = limit.allowed, 1.0
    if seconds > _TOLERANCE * usual:
        gradient = max(0.5, _TOLERANCE * usual / seconds)
        # The limit first falls to about the number of items in flight, and shrinks from there.
        # Shrinking from a limit far above this number would take long to have an effect.
        base = min(base, 2.0 * max(in_flight, LEAST))
    elif 2 * in_flight < base:
        # While far fewer items are in flight than the limit allows, latencies do not show whether a
        # higher limit would overload the backend.
        return Limit(allowed=base, usual=usual)
    target = base * gradient + math.sqrt(base)
    share = _SMOOTHING if answers == 1 else _weight(_SMOOTHING, answers)
    allowed = base + share * (target - base)
    return Limit(allowed=min(_MAX_ITEMS, max(LEAST, allowed)), usual=usual)


def _weight(share: float, answers: int) -> float:
    return 1.0 - (1.0 - share) ** answers
