"""Records the outcome of simulated requests, and sums it up."""

from array import array
from collections.abc import Sequence

import msgspec
import numpy as np

# A percentile is reported if at least so many requests lie beyond it.
_BEYOND = 10


class Bucket(msgspec.Struct, kw_only=True):
    """The requests of a stretch of the day, each of which stands for `weight` of them."""

    phase: str
    start: float
    weight: float
    pods: list[int]
    """The backends of each region that is not lost."""
    latencies: "array[float]" = msgspec.field(default_factory=lambda: array("d"))
    failed: int = 0
    spilled: int = 0


class PhaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a part of the day: latencies in seconds, shares of the requests.

    `played` requests were counted, of which `failed` failed. They stand for `requests`. A
    percentile with too few answers beyond it is `None`.
    """

    phase: str
    played: int
    failed: int
    requests: float
    p50: float | None
    p95: float | None
    p99: float | None
    errors: float
    spilled: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of the day, for plots."""

    start: float
    phase: str
    p95: float | None
    errors: float
    pods: int
    most_in_region: int


class DayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A day under one policy; `simulated` is the requests that were played."""

    policy: str
    phases: list[PhaseFigures]
    points: list[Point]
    pod_hours: float
    most_pods: int
    simulated: int
    processor_seconds: float


def figures(buckets: Sequence[Bucket]) -> list[PhaseFigures]:
    """Return the figures of each phase, and of the whole day."""
    phases = dict.fromkeys(bucket.phase for bucket in buckets)
    found = [_figures(phase, [b for b in buckets if b.phase == phase]) for phase in phases]
    return [*found, _figures("the day", buckets)]


def points(buckets: Sequence[Bucket]) -> list[Point]:
    """Return a point for each stretch."""
    return [
        Point(
            start=bucket.start,
            phase=bucket.phase,
            p95=one.p95,
            errors=one.errors,
            pods=sum(bucket.pods),
            most_in_region=max(bucket.pods),
        )
        for bucket in buckets
        for one in [_figures(bucket.phase, [bucket])]
    ]


def _figures(phase: str, buckets: Sequence[Bucket]) -> PhaseFigures:
    failures = sum(bucket.failed * bucket.weight for bucket in buckets)
    answered = sum(len(bucket.latencies) * bucket.weight for bucket in buckets)
    requests = answered + failures
    values = np.concatenate([np.frombuffer(b.latencies) for b in buckets])
    weights = np.concatenate([np.full(len(b.latencies), b.weight) for b in buckets])
    order = np.argsort(values)
    reached = np.cumsum(weights[order])

    def percentile(share: float) -> float | None:
        if len(values) * (1.0 - share) < _BEYOND - 1e-6:
            return None
        return float(values[order[np.searchsorted(reached, share * reached[-1])]])

    return PhaseFigures(
        phase=phase,
        played=sum(len(b.latencies) + b.failed for b in buckets),
        failed=sum(b.failed for b in buckets),
        requests=requests,
        p50=percentile(0.5),
        p95=percentile(0.95),
        p99=percentile(0.99),
        errors=failures / max(requests, 1.0),
        spilled=sum(b.spilled * b.weight for b in buckets) / max(answered, 1.0),
    )
