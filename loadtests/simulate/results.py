"""Records the results of simulated requests, and summarizes them."""

from collections.abc import Sequence

import msgspec
import numpy as np

# A percentile is reported only if at least this many requests lie beyond it.
_BEYOND = 10


class Bucket(msgspec.Struct, kw_only=True):
    """The requests of a stretch of the day. Each simulated request stands for `weight` requests."""

    phase: str
    start: float
    weight: float
    pods: list[int]
    """The number of backends in each region that is not lost."""
    latencies: list[float] = []
    failed: int = 0
    spilled: int = 0
    """Requests that another region answered."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a part of the day; latencies are in seconds.

    Of `played` simulated requests, `failed` failed. `errors` and `spilled` are shares of all the
    requests for which the played ones stand. A percentile with too few answers beyond it is `None`.
    """

    phase: str
    start: float
    played: int
    failed: int
    p50: float | None
    p95: float | None
    p99: float | None
    errors: float
    spilled: float
    fewest_pods: int
    most_pods: int
    most_in_region: int


class DayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A day under one policy, by phase and by bucket."""

    policy: str
    phases: list[Figures]
    points: list[Figures]
    pod_hours: float
    most_pods: int


def phases(buckets: Sequence[Bucket]) -> list[Figures]:
    """Return the figures of each phase, and of the whole day."""
    names = dict.fromkeys(bucket.phase for bucket in buckets)
    found = [figures(name, [b for b in buckets if b.phase == name]) for name in names]
    return [*found, figures("the day", buckets)]


def figures(phase: str, buckets: Sequence[Bucket]) -> Figures:
    """Return the figures of several stretches of the day together."""
    failures = sum(bucket.failed * bucket.weight for bucket in buckets)
    values = np.concatenate([bucket.latencies for bucket in buckets])
    weights = np.concatenate([np.full(len(b.latencies), b.weight) for b in buckets])
    answered = float(weights.sum())

    def percentile(share: float) -> float | None:
        if len(values) * (1.0 - share) < _BEYOND - 1e-6:
            return None
        return float(np.quantile(values, share, weights=weights, method="inverted_cdf"))

    return Figures(
        phase=phase,
        start=buckets[0].start,
        played=len(values) + sum(bucket.failed for bucket in buckets),
        failed=sum(bucket.failed for bucket in buckets),
        p50=percentile(0.5),
        p95=percentile(0.95),
        p99=percentile(0.99),
        errors=failures / max(answered + failures, 1.0),
        spilled=sum(bucket.spilled * bucket.weight for bucket in buckets) / max(answered, 1.0),
        fewest_pods=min(sum(bucket.pods) for bucket in buckets),
        most_pods=max(sum(bucket.pods) for bucket in buckets),
        most_in_region=max(max(bucket.pods) for bucket in buckets),
    )
