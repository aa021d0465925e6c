"""Computes how many items suit a backend at a time, from the latencies of its answers.

`Fleet.shed` refuses work while all available backends are at theirs; health is judged in `member`.
The limit follows a gradient of latencies, after Netflix's concurrency-limits (Gradient2): while
answers take about as long as usual, it grows by a fraction of its root; where they take more than
twice as long, work queues, and it shrinks with the ratio.
"""

import math

import msgspec

LEAST = 8.0
"""The first limit of a recovered backend, in items."""
_MOST = 4096.0
# Answers may take so many times as long as usual before that counts as a queue.
_TOLERANCE = 2.0
_SMOOTHING = 0.1
# What is usual follows slowly upwards, else a queue would become usual, and quicker downwards.
_UP, _DOWN = 0.005, 0.05


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Items `allowed` in flight, and the `usual` latency in seconds (0: unknown)."""

    allowed: float
    usual: float = 0.0


UNLIMITED = Limit(allowed=_MOST)
CAUTIOUS = Limit(allowed=LEAST)


def after_answer(limit: Limit, seconds: float, in_flight: int, answers: int = 1) -> Limit:
    """Return `limit` after an answer that took so long, with so many items in flight.

    Several `answers` that came together weigh as much as one after the other.
    """
    usual = limit.usual
    if not usual:
        return Limit(allowed=limit.allowed, usual=seconds)
    share = _UP if seconds > usual else _DOWN
    usual += (share if answers == 1 else _weight(share, answers)) * (seconds - usual)
    base, gradient = limit.allowed, 1.0
    if seconds > _TOLERANCE * usual:
        gradient = max(0.5, _TOLERANCE * usual / seconds)
        # Shrinks from what is in use: a limit far above that would take long to have an effect.
        base = min(base, 2.0 * max(in_flight, LEAST))
    elif 2 * in_flight < base:
        # A limit that is not reached says nothing about a higher one.
        return Limit(allowed=base, usual=usual)
    target = base * gradient + math.sqrt(base)
    share = _SMOOTHING if answers == 1 else _weight(_SMOOTHING, answers)
    allowed = base + share * (target - base)
    return Limit(allowed=min(_MOST, max(LEAST, allowed)), usual=usual)


def _weight(share: float, answers: int) -> float:
    return 1.0 - (1.0 - share) ** answers
