"""Judges latencies beside other work by windows in turns: without it, with it, without it again.

A machine whose speed drifts changes all windows of a round alike. The two windows without it are
the control: by how much they differ, so much nobody can tell.
"""

import statistics
from collections.abc import Sequence

import msgspec

_P95 = 0.95


class LatencyRound(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of three windows, one after another."""

    before: Sequence[float]
    beside: Sequence[float]
    after: Sequence[float]

    @property
    def alone(self) -> float:
        """The p95 without the other work."""
        return (p95(self.before) + p95(self.after)) / 2

    @property
    def ratio(self) -> float:
        """The p95 with it, divided by that without."""
        return p95(self.beside) / self.alone

    @property
    def control(self) -> float:
        """The p95 of the later window without it, divided by the p95 of the earlier one."""
        return p95(self.after) / p95(self.before)


class PairedLatencies(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of rounds: p95 alone and beside, their ratio, and how far controls are from 1."""

    rounds: int
    alone: float
    beside: float
    ratio: float
    pooled: float
    """The ratio of the p95 of all windows with and without it, each taken together."""
    control: float


def p95(latencies: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return sorted(latencies)[int(len(latencies) * _P95)]


def pair(rounds: Sequence[LatencyRound]) -> PairedLatencies:
    """Return the medians of rounds."""
    alone = [latency for each in rounds for latency in (*each.before, *each.after)]
    beside = [latency for each in rounds for latency in each.beside]
    return PairedLatencies(
        rounds=len(rounds),
        alone=statistics.median(each.alone for each in rounds),
        beside=statistics.median(p95(each.beside) for each in rounds),
        ratio=statistics.median(each.ratio for each in rounds),
        pooled=p95(beside) / p95(alone),
        control=statistics.median(max(each.control, 1 / each.control) for each in rounds),
    )
