"""Decides how long a worker thread delays its next batch, so that callers can send more rows.

Closed-loop callers send their next request some milliseconds after their last result. With a short
delay, the rows of these requests join the next batch, so that batches are larger. At full load, the
delay costs little, because the event loop uses the core in the meantime.
"""

import msgspec

# A delay takes at most this fraction of the time of the batch that becomes larger through it.
_MAX_SHARE = 0.3
# Success is averaged over about this many delays.
_MEMORY = 8
# While delays fail, only one in this many is tried.
_PROBE = 16
_WORTH = 0.5


class FlightCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts rows at the end of a batch: waiting, running in other threads, and in the batch."""

    waiting: int
    running: int
    ended: int


def expected_rows(load: FlightCounts, *, threads: int, most: int) -> int:
    """Return how many rows the next batch will have if every caller sends a new row.

    The calculation assumes that the threads share the rows equally.

    If no other batch runs, the result is only the number of waiting rows, because the device would
    be idle during a delay.
    """
    if not load.running:
        return load.waiting
    return min(most, (load.waiting + load.running + load.ended) // threads)


def longest_delay(seconds: float) -> float:
    """Return the maximum delay for a batch that takes `seconds`."""
    return _MAX_SHARE * seconds


class QueueDelayPolicy:
    """Decides whether to delay a batch, and learns whether delays succeed.

    A delay fails if callers do not send new rows after a result. If delays fail often, most delays
    are skipped. `RowQueue` calls this policy under its lock.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._worth = 1.0
        self._skipped = 0

    def rows(self, load: FlightCounts, *, most: int) -> int:
        """Return how many rows to wait for; if this is `load.waiting`, the batch is not delayed."""
        wanted = expected_rows(load, threads=self._threads, most=most)
        if wanted <= load.waiting:
            return load.waiting
        if self._worth < _WORTH:
            self._skipped += 1
            if self._skipped < _PROBE:
                return load.waiting
        self._skipped = 0
        return wanted

    def learn(self, *, came_back: bool) -> None:
        """Learn whether a delay ended with the expected rows."""
        self._worth += (float(came_back) - self._worth) / _MEMORY
