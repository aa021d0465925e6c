"""Counts durations in histogram buckets."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the buckets in which metrics count durations."""


class DurationCounts:
    """Counts durations in buckets with these upper `bounds`, and longer ones in a last bucket.

    Not thread-safe.
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, duration: float, count: int = 1) -> None:
        """Count `count` durations of `duration` seconds each."""
        self.counts[bisect_left(self._bounds, duration)] += count
        self.total += duration * count

    def seen(self) -> tuple[tuple[int, ...], float]:
        """Return the counts by bucket, and the sum of the durations in seconds."""
        return tuple(self.counts), self.total

    def take(self) -> tuple[list[int], float]:
        """Return the counts and the sum of the durations since the last call of `take`."""
        seen = self.counts, self.total
        self.counts, self.total = [0] * len(self.counts), 0.0
        return seen
