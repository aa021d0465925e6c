"""Holds the pools of all regions: their backends start, run and end, and cost money."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any  # Any: entries of several kinds

import msgspec

from loadtests.simulate.backend import SimulatedBackend
from sluicegate.backends.executors.cost import CostModel
from sluicegate.gateway.types import BackendId, Endpoint, RegionName

# The rule of `deploy/kubernetes/components/keda`. The two triggers are bounds for a backend's
# values, averaged over all backends and over `_WINDOW`. Times are in seconds.
_QUEUED_SECONDS, BUSY_SHARE = 0.1, 0.7
_TOLERANCE = 0.1
_WINDOW = 60.0
INTERVAL = 15.0
_UP_PERIOD, _UP_SHARE, _UP_PODS = 30.0, 1.0, 2
_DOWN_PERIOD, _DOWN_SHARE = 60.0, 0.25
_STABILIZATION = 300.0
LEAST = 2
START_UP = 40.0
"""Seconds until a new backend has read and measured its models. The time to pull its image is not
included."""


class Pod(msgspec.Struct, frozen=True, eq=False):
    """A backend, and the time of the day from which it is ready."""

    endpoint: Endpoint
    backend: SimulatedBackend
    ready_at: float


class Pool:
    """The backends of one region, which scale as under KEDA and the HPA, to `most` at most."""

    def __init__(self, most: int) -> None:
        self.pods: list[Pod] = []
        self.is_lost = False
        self.started = 0
        self._most = most
        self._scrapes: deque[tuple[float, float, float]] = deque()
        self._wanted: deque[tuple[float, int]] = deque()
        self._counts: deque[tuple[float, int]] = deque()

    def wanted(self, now: float, *, queued: float, busy: float) -> int:
        """Return the new number of backends. Call this once in each `INTERVAL`.

        `queued` and `busy` are sums over all backends.
        """
        replicas = len(self.pods)
        _keep(self._scrapes, (now, queued, busy), now - _WINDOW)
        count = len(self._scrapes)
        by_queue = sum(each for _, each, _ in self._scrapes) / count / _QUEUED_SECONDS
        by_busy = sum(each for _, _, each in self._scrapes) / count / BUSY_SHARE
        wanted = replicas
        if abs(max(by_queue, by_busy) / max(replicas, 1) - 1.0) > _TOLERANCE:
            wanted = math.ceil(max(by_queue, by_busy))
        wanted = max(LEAST, min(self._most, wanted))
        _keep(self._wanted, (now, wanted), now - _STABILIZATION)
        _keep(self._counts, (now, replicas), now - max(_UP_PERIOD, _DOWN_PERIOD))
        # A pool shrinks to the largest number of backends that it needed within the window.
        wanted = max(wanted, min(replicas, max(each for _, each in self._wanted)))
        if wanted > replicas:
            before = self._before(now - _UP_PERIOD)
            return min(wanted, before + max(math.ceil(before * _UP_SHARE), _UP_PODS))
        before = max(self._before(now - _DOWN_PERIOD), replicas)
        return max(wanted, math.floor(before * (1.0 - _DOWN_SHARE)))

    def _before(self, since: float) -> int:
        return next(count for at, count in self._counts if at >= since)


def _keep(entries: deque[Any], new: tuple[Any, ...], since: float) -> None:
    entries.append(new)
    while entries[0][0] <= since:
        entries.popleft()


class World:
    """Advances all pools with the time of day, and sums up their cost."""

    def __init__(
        self, regions: Sequence[str], *, cost: CostModel, random: Random, most: int
    ) -> None:
        self.day = 0.0
        """The simulated time of day, which the owner of this object advances."""
        self.pools = {region: Pool(most // len(regions)) for region in regions}
        self.pod_seconds = 0.0
        self.most_pods = 0
        self.on_lost: list[Callable[[str], None]] = []
        self._cost, self._random = cost, random
        # Removed backends stay reachable until they have answered their queues.
        self._backends: dict[BackendId, SimulatedBackend] = {}

    def endpoints(self) -> list[Endpoint]:
        """Return the backends that DNS lists: all that are ready, even in a lost region."""
        return [
            pod.endpoint
            for pool in self.pools.values()
            for pod in pool.pods
            if pod.ready_at <= self.day
        ]

    def backend(self, endpoint: Endpoint) -> SimulatedBackend:
        """Return the simulated backend at `endpoint`."""
        return self._backends[endpoint.backend]

    def is_silent(self, endpoint: Endpoint) -> bool:
        """Return whether packets to `endpoint` are dropped."""
        return self.pools[endpoint.region].is_lost

    def lose(self, region: str, *, lost: bool) -> None:
        """Cut a region off, or bring it back with new backends."""
        pool = self.pools[region]
        pool.is_lost = lost
        if lost:
            for fall_silent in self.on_lost:
                fall_silent(region)
        else:
            pool.pods = [self._pod(pod.endpoint, pod.ready_at) for pod in pool.pods]

    def scale(self, loads: Mapping[str, float] | None = None) -> None:
        """Scale each pool according to its backends' reports.

        If `loads` is given, the numbers of busy backends in it replace the reports.
        """
        for name, pool in self.pools.items():
            if pool.is_lost:
                continue
            queued, busy = 0.0, 0.0 if loads is None else loads[name]
            if loads is None:
                reports = [p.backend.report() for p in pool.pods if p.ready_at <= self.day]
                queued = sum(report.queued_seconds for report in reports)
                busy = sum(report.device_busy_share for report in reports)
            self.resize(name, pool.wanted(self.day, queued=queued, busy=busy))

    def resize(self, region: str, count: int, *, at_once: bool = False) -> None:
        """Start or remove backends of a region until it has `count`."""
        pool = self.pools[region]
        for number in range(pool.started, pool.started + count - len(pool.pods)):
            name = f"{region}-{number}"
            endpoint = Endpoint(
                backend=BackendId(name), region=RegionName(region), url=f"http://{name}.invalid"
            )
            ready_at = self.day + (0.0 if at_once else START_UP)
            pool.pods.append(self._pod(endpoint, ready_at))
            pool.started += 1
        # The youngest backends are removed first, as by a ReplicaSet.
        del pool.pods[count:]

    def pass_time(self, seconds: float) -> None:
        """Add the cost of some seconds; a lost region costs nothing."""
        pods = sum(len(pool.pods) for pool in self.pools.values() if not pool.is_lost)
        self.pod_seconds += pods * seconds
        self.most_pods = max(self.most_pods, pods)

    def _pod(self, endpoint: Endpoint, ready_at: float) -> Pod:
        backend = SimulatedBackend(endpoint.backend, cost=self._cost, random=self._random)
        self._backends[endpoint.backend] = backend
        return Pod(endpoint, backend, ready_at)
