"""A gateway knows its backends before it answers: at its start, and after a change of them."""

import asyncio
from random import Random

import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.prober import MOST_AT_ONCE, Prober
from sluicegate.gateway.routing.endpoint_state import Health
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.protocol import ServingState
from tests.support.dispatching import endpoint, state
from tests.support.scripted_client import ScriptedClient

pytestmark = pytest.mark.anyio

EU, US = endpoint("eu-0"), endpoint("us-0", region="us")
RARELY = RoutingConfig(probe_interval=60.0)


class StartingClient(ScriptedClient):
    """Backends that come up at the probe that `ready_at` says, or never."""

    def __init__(self, **ready_at: int) -> None:
        super().__init__()
        self._ready_at = ready_at
        self.probes: dict[str, int] = {}

    @override
    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        name = endpoint.backend.partition("-")[0]
        self.probes[name] = self.probes.get(name, 0) + 1
        if self.probes[name] >= self._ready_at.get(name, 1_000_000):
            self.states[endpoint.backend] = state(endpoint.backend)
        return await super().state(endpoint, time_limit=time_limit)


def fleet_of(*endpoints: Endpoint) -> Fleet:
    fleet = Fleet(clock=asyncio.get_running_loop().time, random=Random(1))
    fleet.configure(endpoints, RARELY)
    return fleet


def regions(fleet: Fleet) -> tuple[str, ...]:
    model = fleet.model("stub")
    return () if model is None else model.regions


async def test_a_start_waits_for_backends_that_start_as_well() -> None:
    fleet = fleet_of(EU, US)
    client = StartingClient(eu=3, us=5)

    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await asyncio.wait_for(prober.wait_until_ready(), 60.0)

    assert regions(fleet) == ("eu", "us")


@pytest.mark.parametrize(
    ("ready_at", "first", "rest", "least", "most"),
    [({}, 0.3, 0.1, 0.3, 2.0), ({"eu": 2}, 9.0, 0.3, 0.3, 3.0)],
    ids=["while none is ready", "once one is"],
)
async def test_a_backend_that_is_away_keeps_a_start_for_a_bounded_time(
    ready_at: dict[str, int], first: float, rest: float, least: float, most: float
) -> None:
    client = StartingClient(**ready_at)
    clock = asyncio.get_running_loop().time
    started = clock()

    async with Prober(fleet=fleet_of(EU, US), client=client, random=Random(1)) as prober:
        await asyncio.wait_for(prober.wait_until_ready(first=first, rest=rest), 60.0)

    assert least <= clock() - started < most


async def test_backends_that_replace_all_others_are_known_the_moment_they_do() -> None:
    fleet = fleet_of(EU)
    client = StartingClient(eu=1, us=1)

    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await prober.wait_until_ready()
        await prober.probe_new((US,))
        before = regions(fleet)
        fleet.configure((US,), RARELY)
        prober.refresh()
        after = regions(fleet)

    assert (before, after) == (("eu",), ("us",))
    assert [each.health for each in fleet.statistics()] == [Health.READY]


async def test_a_new_backend_that_does_not_answer_is_no_reason_to_refuse_a_change() -> None:
    fleet = fleet_of(EU)
    client = StartingClient(eu=1)

    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await prober.wait_until_ready()
        await prober.probe_new((EU, US))
        fleet.configure((EU, US), RARELY)
        prober.refresh()

    assert regions(fleet) == ("eu",)


class HoldingClient(ScriptedClient):
    """Answers once as many probes wait as may, and notes the most that ever did."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = self.most = 0
        self._full = asyncio.Event()

    @override
    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        if self._waiting == MOST_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._full.set)
        await self._full.wait()
        self._waiting -= 1
        return state(endpoint.backend)


async def test_a_large_fleet_is_not_probed_all_at_once() -> None:
    many = [endpoint(f"eu-{number}") for number in range(2 * MOST_AT_ONCE)]
    new = [endpoint(f"us-{number}") for number in range(MOST_AT_ONCE)]
    fleet, client = fleet_of(*many), HoldingClient()

    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await asyncio.wait_for(prober.wait_for_first_probes(), 60.0)
        await asyncio.wait_for(prober.probe_new(new), 60.0)

    assert client.most == MOST_AT_ONCE
    assert {each.health for each in fleet.statistics()} == {Health.READY}
