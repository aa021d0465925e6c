"""Bounds how long interactive rows wait for bulk batches, which are not interrupted once they run.

The queues of one device share a pause.
"""

import math

from backends.batching.fair_queue import INTERACTIVE

# For so many seconds after an interactive batch more are expected.
_INTERACTIVE_MEMORY = 10.0
# How many times as long as an interactive batch a bulk batch of several rows may then be.
_LENGTH = 2.0
# Weight of the newest interactive batch in the average of their seconds.
_NEWEST = 0.2
# The longest pause: a queue moves, whatever its batches take.
_LONGEST_PAUSE = 2.0
BULK_SHARE = 0.04


class BulkPause:
    """Says how long a bulk batch may take beside interactive ones, and when the next may begin.

    While interactive batches come, bulk ones take `share` of the time, one after the other however
    many slots the device has, each up to twice as long as those. Of arrivals at random then so few
    find a bulk batch that the p95 of their latency is nearly that alone. Only single rows that are
    too long for the share in the longest pause take more of it.
    Any thread may call it: what one misses of another changes little.
    """

    def __init__(self, share: float = BULK_SHARE) -> None:
        self._rest = 1.0 / share - 1.0  # for each second of a batch
        self._longest = _LONGEST_PAUSE / self._rest if self._rest else math.inf
        self._interactive_until = -math.inf
        self._interactive_seconds = 0.0
        self.until = -math.inf
        """No bulk batch begins before."""

    def limit(self, now: float) -> float:
        """Return the seconds that a bulk batch may take, where it has more than one row."""
        if now >= self._interactive_until:
            return math.inf
        return min(_LENGTH * self._interactive_seconds, self._longest)

    def began(self, lane: str, seconds: float, now: float) -> None:
        """Note that a batch began, which is expected to take so long."""
        if lane == INTERACTIVE:
            self._interactive_until = now + _INTERACTIVE_MEMORY
            self._interactive_seconds += _NEWEST * (seconds - self._interactive_seconds)
        elif now < self._interactive_until:
            self.until = now + seconds + min(seconds * self._rest, _LONGEST_PAUSE)
