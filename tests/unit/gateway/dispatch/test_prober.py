"""When backends are asked for their state, and what the fleet learns."""

import asyncio
from random import Random

import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.prober import JITTER, MOST_PROBES, Prober, effective_interval
from sluicegate.gateway.routing.endpoint_state import Health
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.transport import KEEPALIVE_EXPIRY
from sluicegate.wire.protocol import ServingState
from tests.support.dispatching import endpoint, state
from tests.support.scripted_client import ScriptedClient

pytestmark = pytest.mark.anyio

EU, US = endpoint("eu-0"), endpoint("us-0", region="us")
RARELY = RoutingConfig(probe_interval=60.0)


class CountingClient(ScriptedClient):
    """Notes every probe."""

    def __init__(self) -> None:
        super().__init__()
        self.probed: list[str] = []
        self.noted = asyncio.Event()

    @override
    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        self.probed.append(endpoint.backend)
        self.noted.set()
        return await super().state(endpoint, time_limit=time_limit)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60.0):
            while len(self.probed) < count:
                self.noted.clear()
                await self.noted.wait()


def fleet_of(*endpoints: Endpoint, routing: RoutingConfig = RARELY) -> Fleet:
    fleet = Fleet(clock=asyncio.get_running_loop().time, random=Random(1))
    fleet.configure(endpoints, routing)
    return fleet


def health(fleet: Fleet) -> dict[str, Health]:
    return {str(each.backend): each.health for each in fleet.statistics()}


async def test_after_the_first_round_every_endpoint_is_known() -> None:
    client, fleet = CountingClient(), fleet_of(EU, US)
    client.states["eu-0"] = state("eu-0")

    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await asyncio.wait_for(prober.wait_for_first_probes(), 60.0)

        assert health(fleet) == {"eu-0": Health.READY, "us-0": Health.NOT_READY}


async def test_a_new_endpoint_is_probed_at_once_and_one_that_left_no_more() -> None:
    client, fleet = CountingClient(), fleet_of(EU)
    client.states["us-0"] = state("us-0")

    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await prober.wait_for_first_probes()
        fleet.configure([US], RARELY)
        prober.refresh()
        await asyncio.wait_for(prober.wait_for_first_probes(), 60.0)
        prober.probe_soon(EU)

        assert client.probed == ["eu-0", "us-0"]
        assert health(fleet) == {"us-0": Health.READY}


async def test_endpoints_are_probed_in_the_order_of_the_configuration() -> None:
    client, backends = CountingClient(), [f"eu-{number}" for number in range(9)]

    async with Prober(
        fleet=fleet_of(*map(endpoint, backends)), client=client, random=Random(1)
    ) as prober:
        await prober.wait_for_first_probes()

    assert client.probed == backends


async def test_a_probe_can_be_asked_for() -> None:
    client, fleet = CountingClient(), fleet_of(EU)

    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await prober.wait_for_first_probes()
        client.states["eu-0"] = state("eu-0")
        prober.probe_soon(EU)
        await client.until(2)
        await asyncio.sleep(0)

        assert health(fleet) == {"eu-0": Health.READY}


async def test_each_change_of_a_backend_is_told_once() -> None:
    client, fleet = CountingClient(), fleet_of(EU, routing=RoutingConfig(probe_interval=0.02))
    client.states.clear()
    told: list[Health] = []

    def tell() -> None:
        told.append(health(fleet)["eu-0"])

    async with Prober(fleet=fleet, client=client, random=Random(1), changed=tell):
        await client.until(3)
        client.states["eu-0"] = state("eu-0")
        await client.until(6)

    assert told == [Health.NOT_READY, Health.READY]


async def test_probes_repeat() -> None:
    client, fleet = CountingClient(), fleet_of(EU, routing=RoutingConfig(probe_interval=0.02))

    async with Prober(fleet=fleet, client=client, random=Random(1)):
        await client.until(3)


async def test_many_backends_are_probed_more_rarely_than_configured() -> None:
    few = fleet_of(EU, US, routing=RoutingConfig(probe_interval=0.5))
    many = fleet_of(
        *(endpoint(f"eu-{n}") for n in range(2000)), routing=RoutingConfig(probe_interval=0.5)
    )

    assert effective_interval(few) == 0.5
    assert effective_interval(many) == 2000 / MOST_PROBES


async def test_probes_of_thousands_of_backends_use_kept_connections() -> None:
    fleet = fleet_of(*(endpoint(f"eu-{n}") for n in range(4000)))
    fleet.routing = RoutingConfig()

    assert effective_interval(fleet) * (1 + JITTER) < KEEPALIVE_EXPIRY


class SilentClient(CountingClient):
    """Backends that stop to answer after so many probes, whatever patience was asked for."""

    def __init__(self, *, answers: int = 0) -> None:
        super().__init__()
        self._answers = answers

    @override
    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        self.probed.append(endpoint.backend)
        self.noted.set()
        if len(self.probed) > self._answers:
            await asyncio.get_running_loop().create_future()
        return state(endpoint.backend)


async def test_waiting_for_the_first_round_ends_when_the_endpoint_leaves() -> None:
    fleet = fleet_of(EU)
    async with Prober(fleet=fleet, client=SilentClient(), random=Random(1)) as prober:
        waiting = asyncio.create_task(prober.wait_for_first_probes())
        await asyncio.sleep(0)
        fleet.configure([], RARELY)
        prober.refresh()

        await asyncio.wait_for(waiting, 60.0)


async def test_waiting_for_a_probe_in_flight_ends_when_the_endpoint_leaves() -> None:
    client, fleet = SilentClient(answers=1), fleet_of(EU)
    async with Prober(fleet=fleet, client=client, random=Random(1)) as prober:
        await prober.wait_for_first_probes()
        waiting = asyncio.create_task(prober.probe_all())
        await client.until(2)
        fleet.configure([], RARELY)
        prober.refresh()

        await asyncio.wait_for(waiting, 60.0)


async def test_waiting_for_probes_ends_with_the_prober() -> None:
    client = SilentClient(answers=1)
    async with Prober(fleet=fleet_of(EU), client=client, random=Random(1)) as prober:
        await prober.wait_for_first_probes()
        in_flight = asyncio.create_task(prober.probe_all())
        await client.until(2)
        next_one = asyncio.create_task(prober.probe_all())
        await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(in_flight, next_one), 60.0)


async def test_waiting_for_probes_has_an_end_whatever_becomes_of_them() -> None:
    fleet = fleet_of(EU, routing=RoutingConfig(probe_timeout=0.01))
    async with Prober(fleet=fleet, client=SilentClient(), random=Random(1)) as prober:
        await asyncio.wait_for(prober.probe_all(), 60.0)
