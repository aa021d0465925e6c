"""Backends that start or join follow the operators' plans before their models are known."""

from random import Random

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.plans import PlanFollower
from sluicegate.gateway.dispatch.prober import Prober
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.routing.endpoint_state import Health
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.plans import ServingPlans
from sluicegate.wire.protocol import ServingState
from testing.stub_backend import stub_model
from testing.waiting import until
from tests.support.clock import Clock
from tests.support.dispatching import endpoint, state
from tests.support.scripted_client import ScriptedClient

pytestmark = pytest.mark.anyio
EU = endpoint("eu-0")
PLANS = ServingPlans(version=5)
SPLIT = msgspec.structs.replace(stub_model(), revision="of the plan")


class Following(ScriptedClient):
    """A backend that serves another revision once it has plans."""

    def __init__(self) -> None:
        super().__init__()
        self.states["eu-0"] = state("eu-0")
        self.given: list[int] = []

    @override
    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        self.given.append(plans.version)
        found = await super().reload(endpoint, plans, time_limit=time_limit)
        found = msgspec.structs.replace(found, models=[SPLIT])
        self.states[endpoint.backend] = found
        return found


class FormerProgram(Following):
    """A backend of an earlier version, which ignores plans."""

    @override
    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        self.given.append(plans.version)
        return state(endpoint.backend)


async def follower(client: ScriptedClient, plans: ServingPlans = PLANS) -> PlanFollower:
    found = PlanFollower(load=lambda: plans, client=client)
    await found.read_again()
    return found


async def test_a_backend_without_plans_is_known_by_what_it_serves_with_them() -> None:
    fleet, client = Fleet(clock=Clock(), random=Random(1)), Following()
    fleet.configure((EU,), RoutingConfig())
    plans = await follower(client)

    async with Prober(fleet=fleet, client=client, random=Random(1), bring_up=plans.bring_up):
        await until(lambda: fleet.statistics()[0].health is Health.READY, what="it is ready")

    assert client.given == [5]
    assert fleet.statistics()[0].models == {"stub": "of the plan"}


async def test_a_backend_that_follows_is_left_alone() -> None:
    client = Following()
    plans = await follower(client)

    found = msgspec.structs.replace(state("eu-0"), plans=5)

    assert await plans.bring_up(EU, found) is found
    newer = msgspec.structs.replace(found, plans=6)
    assert await plans.bring_up(EU, newer) is newer
    assert client.given == []


async def test_a_backend_that_cannot_follow_is_used_as_it_is_and_not_asked_at_each_probe() -> None:
    client = FormerProgram()
    plans = await follower(client)

    for _ in range(3):
        assert (await plans.bring_up(EU, state("eu-0"))).models == [stub_model()]

    assert client.given == [5]


async def test_a_backend_that_is_not_ready_is_given_nothing() -> None:
    client = Following()
    plans = await follower(client)
    found = state("eu-0", ready=False)

    assert await plans.bring_up(EU, found) is found
    assert client.given == []


async def test_without_a_ledger_the_last_plans_stay() -> None:
    answers: list[ServingPlans | None] = [PLANS, None]

    def load() -> ServingPlans:
        found = answers.pop(0) if answers else None
        if found is None:
            raise DependencyUnavailable("away")
        return found

    async with PlanFollower(load=load, client=Following(), poll=0.001) as plans:
        await until(lambda: not answers, what="a look")

        assert plans.current == PLANS


async def test_plans_that_another_gateway_changed_are_found() -> None:
    found = [ServingPlans(version=1), ServingPlans(version=2)]
    versions: list[int] = []
    plans = PlanFollower(
        load=lambda: found.pop(0) if len(found) > 1 else found[0], client=Following(), poll=0.001
    )

    async def changed() -> None:
        versions.append(plans.current.version)

    plans.on_change(changed)
    async with plans:
        await until(lambda: bool(versions), what="a change")

    assert versions == [2]
