"""Measures the durations of request phases.

The durations come from `perf_counter`. The event loop's clock is not precise enough: it stands
still while callbacks run, and has a resolution of only a millisecond.
"""

from bisect import bisect_left
from collections.abc import Iterator
from time import perf_counter
from typing import Final

from sluicegate.wire.durations import SECONDS, DurationCounts
from sluicegate.wire.metric_declaration import histogram

DURATIONS: Final = histogram(
    "sluicegate_phase_duration_seconds",
    "Duration of a phase of a request. `phase`: `admission` (key, body, limits), `cache` (lookup "
    "in memory or Redis), `wait` (from the lookup until all missing items have an outcome; "
    "includes the lookup if Redis decided the limits), `dispatch` (a call to a backend). One in 64 "
    "repeated hits is measured and counts 64 times; a hit that its caller traces is always "
    "measured.",
    "phase",
)
PHASES: Final = ("admission", "cache", "wait", "dispatch")


class PhaseDurations:
    """Holds the durations of each phase until the next flush. Only the event loop uses it."""

    def __init__(self) -> None:
        self.clock = perf_counter
        self._counts = {phase: DurationCounts(SECONDS) for phase in PHASES}

    def end(self, phase: str, began: float, count: int = 1) -> float:
        """Record a phase that lasted from `began` until now. Return the present time.

        The phase is recorded `count` times, once for each of `count` equal requests.
        """
        now = self.clock()
        # This is the code of `DurationCounts.add`, inlined to save a call.
        durations = self._counts[phase]
        durations.counts[bisect_left(SECONDS, now - began)] += count
        durations.total += (now - began) * count
        return now

    def add(self, phase: str, duration: float, count: int) -> None:
        """Record `count` phases of `duration` seconds each."""
        self._counts[phase].add(duration, count)

    def take(self) -> Iterator[tuple[str, list[int], float]]:
        """Yield each phase's name, counts by bucket, and total duration since the last call."""
        for phase, durations in self._counts.items():
            counts, total = durations.take()
            yield phase, counts, total
