"""Chooses backends in ways with which production's routing is compared.

Only the first choice of a backend differs. Probes, ejection and retries are the same as in
production.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random

from typing_extensions import override

from sluicegate.gateway.routing.choice import ChoiceContext
from sluicegate.gateway.routing.endpoint_state import EndpointState
from sluicegate.gateway.routing.fleet import Fleet, ItemShare
from sluicegate.gateway.types import BackendId, Endpoint, RegionName, ServedModel

Pick = Callable[[Sequence[EndpointState], Sequence[bytes]], Endpoint]
"""Takes endpoints and the affinities of items, and returns an endpoint for the items."""


def in_turn(random: Random) -> Pick:
    """Return a function that takes endpoints in turn."""
    turns = itertools.count(random.randrange(1 << 20))
    return lambda endpoints, _: endpoints[next(turns) % len(endpoints)].config


def of_two(random: Random) -> Pick:
    """Return a function that takes two random endpoints and returns the one with fewer items.

    A gateway knows only its own items, so items of other gateways are ignored.
    """

    def pick(endpoints: Sequence[EndpointState], _: Sequence[bytes]) -> Endpoint:
        two = random.sample(endpoints, min(2, len(endpoints)))
        return min(two, key=lambda endpoint: endpoint.in_flight).config

    return pick


class PickingFleet(Fleet):
    """Sends a request to the endpoint that `pick` returns.

    `pick` gets the endpoints of the first region that has any.
    """

    def __init__(self, *, clock: Callable[[], float], random: Random, pick: Pick) -> None:
        super().__init__(clock=clock, random=random)
        self._now, self._pick = clock, pick

    @override
    def spread(
        self, model: ServedModel, affinities: Sequence[bytes], *, together: bool = True
    ) -> list[ItemShare]:
        found = self._availability(model, ChoiceContext(self._now(), self.routing))
        if not found.tiers:
            return super().spread(model, affinities, together=together)
        endpoint = self._pick(found.tiers[0], affinities)
        return [ItemShare(endpoint=endpoint, items=tuple(range(len(affinities))))]


class Oracle:
    """Knows when each backend will be free, because it sees the requests of all gateways."""

    def __init__(self) -> None:
        self._free: dict[BackendId, float] = {}
        self._queues: dict[RegionName, list[tuple[float, BackendId, Endpoint]]] = {}

    def follow(self, endpoints: Sequence[Endpoint], now: float) -> None:
        """Replace the known backends by `endpoints`."""
        self._free = {each.backend: self._free.get(each.backend, now) for each in endpoints}
        self._queues = {each.region: [] for each in endpoints}
        for each in endpoints:
            entry = (self._free[each.backend], each.backend, each)
            heapq.heappush(self._queues[each.region], entry)

    def take(self, seconds: float, now: float, delays: Mapping[str, float]) -> Endpoint:
        """Return the backend that would answer first, and add the work to its queue."""
        soonest = {
            region: max(now, queue[0][0]) + delays[region] for region, queue in self._queues.items()
        }
        queue = self._queues[min(soonest, key=soonest.__getitem__)]
        free, backend, endpoint = queue[0]
        self._free[backend] = max(now, free) + seconds
        heapq.heapreplace(queue, (self._free[backend], backend, endpoint))
        return endpoint
