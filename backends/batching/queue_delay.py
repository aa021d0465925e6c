"""Decides how long a worker thread that has just run a batch waits for its callers' next rows.

Callers that wait for an answer before they ask again come back some milliseconds after a batch.
A thread that does not wait for them runs smaller batches. At full load its core is not idle while
it waits: the event loop uses the core to answer and to read more.
"""

import msgspec

# A wait is no longer than this share of the time that the larger batch will take.
_MAX_SHARE = 0.3
# Whether waits were worth it counts over about so many of them.
_MEMORY = 8
# Where they were not, one in so many is tried.
_PROBE = 16
_WORTH = 0.5


class FlightCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how many rows waited, ran in other threads and were in the batch, when that ended."""

    waiting: int
    running: int
    ended: int


def expected_rows(load: FlightCounts, *, threads: int, most: int) -> int:
    """Return the rows of the next batch if all callers come back and threads share them alike.

    With no other batch in flight it is what waits: the device is idle then.
    """
    if not load.running:
        return load.waiting
    return min(most, (load.waiting + load.running + load.ended) // threads)


def longest_delay(seconds: float) -> float:
    """Return how long a thread may wait for a batch that takes so many seconds."""
    return _MAX_SHARE * seconds


class QueueDelayPolicy:
    """Bounds the waits of a batcher's threads, and learns whether rows come back in that time.

    Callers that do not wait for answers do not come back: after a few waits in vain only one in
    some is tried. `RowQueue` serialises access.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._worth = 1.0
        self._skipped = 0

    def rows(self, load: FlightCounts, *, most: int) -> int:
        """Return how many rows are worth waiting for; as many as wait where none are."""
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
        """Learn from a wait, which ended with the expected rows or without."""
        self._worth += (float(came_back) - self._worth) / _MEMORY
