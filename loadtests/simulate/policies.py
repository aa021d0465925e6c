"""Chooses backends in ways that production does not, to compare it with.

Each is a fleet whose first choice differs: probes, ejection and retries stay those of production.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from random import Random

from typing_extensions import override

from gateway.routing.choice import ChoiceContext
from gateway.routing.endpoint_state import EndpointState
from gateway.routing.fleet import Fleet, ItemShare
from gateway.types import BackendId, Endpoint, RegionName, ServedModel


class _OneBackendFleet(Fleet):
    """Sends a request to one endpoint of the first region that has available endpoints."""

    def __init__(self, *, clock: Callable[[], float], random: Random) -> None:
        super().__init__(clock=clock, random=random)
        self._now, self._chance = clock, random

    @override
    def spread(
        self, model: ServedModel, affinities: Sequence[bytes], *, together: bool = True
    ) -> list[ItemShare]:
        found = self._availability(model, ChoiceContext(self._now(), self.routing))
        if not found.tiers:
            return super().spread(model, affinities, together=together)
        endpoint = self._one_of(found.tiers[0]).config
        return [ItemShare(endpoint=endpoint, items=tuple(range(len(affinities))))]

    def _one_of(self, endpoints: Sequence[EndpointState]) -> EndpointState:
        raise NotImplementedError


class RoundRobinFleet(_OneBackendFleet):
    """Takes endpoints in turn."""

    def __init__(self, *, clock: Callable[[], float], random: Random) -> None:
        super().__init__(clock=clock, random=random)
        self._turn = random.randrange(1 << 20)

    @override
    def _one_of(self, endpoints: Sequence[EndpointState]) -> EndpointState:
        self._turn += 1
        return endpoints[self._turn % len(endpoints)]


class TwoChoicesFleet(_OneBackendFleet):
    """Picks two random endpoints, and takes the one with fewer items of this gateway in flight."""

    @override
    def _one_of(self, endpoints: Sequence[EndpointState]) -> EndpointState:
        drawn = self._chance.sample(endpoints, min(2, len(endpoints)))
        return min(drawn, key=lambda endpoint: endpoint.in_flight)


class OracleState:
    """Knows when each backend will be free, for all gateways together."""

    def __init__(self) -> None:
        self._free: dict[BackendId, float] = {}
        self._queues: dict[RegionName, list[tuple[float, BackendId]]] = {}
        self._endpoints: dict[BackendId, Endpoint] = {}

    def follow(self, endpoints: Sequence[Endpoint], now: float) -> None:
        """Replace the known backends by these."""
        self._endpoints = {each.backend: each for each in endpoints}
        self._free = {each.backend: self._free.get(each.backend, now) for each in endpoints}
        self._queues = {each.region: [] for each in endpoints}
        for each in endpoints:
            self._queues[each.region].append((self._free[each.backend], each.backend))
        for queue in self._queues.values():
            heapq.heapify(queue)

    def take(self, seconds: float, now: float, delays: Mapping[str, float]) -> Endpoint | None:
        """Return the backend that answers soonest, and add the work to its queue."""
        found = [
            (max(now, queue[0][0]) + delays[region], region)
            for region, queue in self._queues.items()
            if queue
        ]
        if not found:
            return None
        _, region = min(found)
        free = max(now, self._queues[region][0][0])
        backend = self._queues[region][0][1]
        self._free[backend] = free + seconds
        heapq.heapreplace(self._queues[region], (free + seconds, backend))
        return self._endpoints[backend]


class OracleFleet(Fleet):
    """Sends each item to the backend that answers soonest. `work_of` gives an item's seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        random: Random,
        state: OracleState,
        work_of: Callable[[bytes], float],
        delays: Mapping[str, float],
    ) -> None:
        super().__init__(clock=clock, random=random)
        self._now, self._state, self._work_of, self._delays = clock, state, work_of, delays

    @override
    def spread(
        self, model: ServedModel, affinities: Sequence[bytes], *, together: bool = True
    ) -> list[ItemShare]:
        work = sum(map(self._work_of, affinities))
        found = self._state.take(work, self._now(), self._delays)
        if found is None:
            return []
        return [ItemShare(endpoint=found, items=tuple(range(len(affinities))))]
