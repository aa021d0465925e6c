"""Runs a gateway's dispatcher, fleet and prober, those of production, over simulated backends."""

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from backends.protocol import ClassifyParameters, ModelInfo, Task
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.prober import Prober
from gateway.dispatch.work import Outcomes, Work, WorkItem
from gateway.routing.fleet import Fleet
from gateway.types import Endpoint
from loadtests.simulate.client import SimulatedClient
from loadtests.simulate.scenario import Scenario, draw_length
from loadtests.simulate.world import World

_PARAMETERS = msgspec.msgpack.encode(ClassifyParameters())
MODEL = ModelInfo(
    name="simulated",
    revision="aaaaaaaaaaaa",
    profile="fp32",
    tasks=[Task.CLASSIFY],
    algorithm="none",
    algorithm_version=1,
    max_tokens=512,
)
Ended = Callable[[float, str, str], None]
"""Takes the seconds of a request, the code of its failure, and the region that answered it."""


class SimulatedGateway:
    """One gateway, which sends requests of its own."""

    def __init__(
        self,
        region: str,
        *,
        scenario: Scenario,
        world: World,
        fleet: Fleet,
        round_trips: dict[str, float],
        random: Random,
    ) -> None:
        self.region = region
        self.fleet = fleet
        self._scenario = scenario
        self._world = world
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._order = sorted(round_trips, key=lambda each: (round_trips[each], each))
        self._answered: dict[bytes, str] = {}
        client = SimulatedClient(
            world, info=MODEL, round_trips=round_trips, random=random, answered=self._note
        )
        self.prober = Prober(fleet=fleet, client=client, random=random)
        self.dispatcher = Dispatcher(
            fleet=fleet, client=client, reprobe=self.prober.probe_soon, clock=self._loop.time
        )

    def follow(self) -> None:
        """Use the backends that DNS knows now."""
        found = self._world.endpoints()
        endpoints = sorted(found, key=lambda each: self._order.index(each.region))
        self.fleet.configure(endpoints, self._scenario.routing)
        self.prober.refresh()

    def send(self, ended: Ended, tokens: int = 0) -> None:
        """Begin a request of one item, of so many tokens or as many as texts have."""
        started = self._loop.time()
        model = self.fleet.model(MODEL.name)
        if model is None:
            ended(0.0, "unknown_model", "")
            return
        length = tokens or draw_length(self._random)
        body = length.to_bytes(2, "big") + self._random.randbytes(8)
        item = WorkItem(index=0, body=body, scope="tenant:a", affinity=body)
        work = Work(
            model=model, task=Task.CLASSIFY, parameters=_PARAMETERS, items=(item,), atomic=True
        )

        def settle(outcomes: Outcomes) -> None:
            failure = outcomes[0][1].failure
            code = "" if failure is None else failure.code
            ended(self._loop.time() - started, code, self._answered.pop(body))

        self._answered[body] = ""
        deadline = started + self._scenario.deadline
        self.dispatcher.start(work, deadline=deadline, settle=settle)

    def _note(self, endpoint: Endpoint, body: bytes) -> None:
        """Keep which region answered an item that is still waited for."""
        if body in self._answered:
            self._answered[body] = endpoint.region
