"""Counts how long the phases of requests took, on a clock that is finer than the event loop's."""

from bisect import bisect_left
from collections.abc import Iterator
from time import perf_counter
from typing import Final

from backends.durations import DurationCounts
from gateway.telemetry.catalogue import SECONDS

PHASES: Final = ("admission", "cache", "wait", "dispatch")


class PhaseDurations:
    """Holds the durations of each phase until the next flush. Belongs to the event loop.

    The event loop's own clock stands still while callbacks run, and counts milliseconds.
    """

    def __init__(self) -> None:
        self.clock = perf_counter
        self._counts = {phase: DurationCounts(SECONDS) for phase in PHASES}

    def end(self, phase: str, began: float, count: int = 1) -> float:
        """Count a phase that began at `began` and ends now `count` times; return the time."""
        now = self.clock()
        # As `add`, which would be another call.
        durations = self._counts[phase]
        durations.counts[bisect_left(SECONDS, now - began)] += count
        durations.total += (now - began) * count
        return now

    def add(self, phase: str, duration: float, count: int) -> None:
        """Count a phase `count` times."""
        self._counts[phase].add(duration, count)

    def take(self) -> Iterator[tuple[str, list[int], float]]:
        """Yield each phase's name, counts by bucket and sum since the last call."""
        for phase, durations in self._counts.items():
            counts, total = durations.take()
            yield phase, counts, total
