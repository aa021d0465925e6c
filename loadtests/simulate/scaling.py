"""Scales a pool as KEDA's triggers and the HPA's behaviour of `deploy/kubernetes` do."""

import math
from collections import deque

import msgspec


class ScalingRule(msgspec.Struct, frozen=True, kw_only=True):
    """Triggers are averages over `window`, for each backend; durations are in seconds.

    By default as in `deploy/kubernetes/components/keda`.
    """

    queued_seconds: float = 0.1
    busy_share: float = 0.7
    tolerance: float = 0.1
    window: float = 60.0
    interval: float = 15.0
    up_period: float = 30.0
    up_share: float = 1.0
    up_pods: int = 2
    down_period: float = 60.0
    down_share: float = 0.25
    stabilization: float = 300.0
    least: int = 2
    start_up: float = 40.0
    """Until a new backend is ready: its image is there, its models are read and measured."""


class Scaler:
    """Says how many backends a pool should have, `most` of them at most."""

    def __init__(self, rule: ScalingRule, *, most: int) -> None:
        self._rule = rule
        self._most = most
        self._scrapes: deque[tuple[float, float, float]] = deque()
        self._wanted: deque[tuple[float, int]] = deque()
        self._counts: deque[tuple[float, int]] = deque()

    def step(self, now: float, replicas: int, *, queued: float, busy: float) -> int:
        """Return the count after the sums over all backends were scraped, one interval later."""
        rule = self._rule
        _keep(self._scrapes, (now, queued, busy), now - rule.window)
        count = len(self._scrapes)
        by_queue = sum(each for _, each, _ in self._scrapes) / count / rule.queued_seconds
        by_busy = sum(each for _, _, each in self._scrapes) / count / rule.busy_share
        wanted = replicas
        if abs(max(by_queue, by_busy) / max(replicas, 1) - 1.0) > rule.tolerance:
            wanted = math.ceil(max(by_queue, by_busy))
        wanted = max(rule.least, min(self._most, wanted))
        _keep(self._wanted, (now, wanted), now - rule.stabilization)
        _keep(self._counts, (now, replicas), now - max(rule.up_period, rule.down_period))
        # A pool shrinks to the most that was wanted within the window.
        wanted = max(wanted, min(replicas, max(each for _, each in self._wanted)))
        if wanted > replicas:
            before = self._before(now - rule.up_period)
            return min(wanted, max(before + math.ceil(before * rule.up_share), before + 2))
        before = max(self._before(now - rule.down_period), replicas)
        return max(wanted, math.floor(before * (1.0 - rule.down_share)))

    def _before(self, since: float) -> int:
        return next(count for at, count in self._counts if at >= since)


def _keep(entries: "deque[tuple]", new: tuple, since: float) -> None:  # type: ignore[type-arg]
    entries.append(new)
    while entries[0][0] <= since:
        entries.popleft()
