"""Limits how long interactive rows wait for bulk batches, which cannot be interrupted.

All queues of a device share one `BulkPause`.
"""

import math

from sluicegate.backends.batching.fair_queue import INTERACTIVE

# For this many seconds after an interactive batch, more interactive batches are expected.
_INTERACTIVE_MEMORY = 10.0
# While interactive batches are expected, a bulk batch may take this many times as long as an
# average interactive batch.
_LENGTH = 2.0
# Weight of the newest interactive batch in the moving average.
_NEWEST = 0.2
# The longest pause in seconds, so that bulk rows always make progress.
_LONGEST_PAUSE = 2.0
BULK_SHARE = 0.04


class BulkPause:
    """Decides how long a bulk batch may take, and when the next bulk batch may begin.

    While interactive batches are expected, bulk batches run one at a time and take `share` of the
    time. Each bulk batch takes at most twice as long as an average interactive batch. Therefore,
    few interactive requests wait for a bulk batch, and the p95 latency of interactive requests
    hardly changes. But a single long bulk row may take more than `share` of the time, because the
    pause after it is limited.

    Threads use this object without a lock, because a lost update changes little.
    """

    def __init__(self, share: float = BULK_SHARE) -> None:
        self._rest = 1.0 / share - 1.0  # seconds of pause per second of a batch
        self._longest = _LONGEST_PAUSE / self._rest if self._rest else math.inf
        self._interactive_until = -math.inf
        self._interactive_seconds = 0.0
        self.until = -math.inf
        """No bulk batch begins before this time."""

    def limit(self, now: float) -> float:
        """Return the seconds that a bulk batch of several rows may take."""
        if now >= self._interactive_until:
            return math.inf
        return min(_LENGTH * self._interactive_seconds, self._longest)

    def began(self, lane: str, seconds: float, now: float) -> None:
        """Record the start of a batch that is predicted to take `seconds`."""
        if lane == INTERACTIVE:
            self._interactive_until = now + _INTERACTIVE_MEMORY
            self._interactive_seconds += _NEWEST * (seconds - self._interactive_seconds)
        elif now < self._interactive_until:
            self.until = now + seconds + min(seconds * self._rest, _LONGEST_PAUSE)
