"""What the fleet knows once backends have read their repositories again."""

from random import Random

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.plans import ModelReloader, PlanFollower
from sluicegate.gateway.dispatch.prober import Prober
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint
from sluicegate.wire.plans import ServingPlans
from sluicegate.wire.protocol import ServingState
from tests.support.clock import Clock
from tests.support.dispatching import endpoint, state
from tests.support.scripted_client import ScriptedClient

pytestmark = pytest.mark.anyio
EU = endpoint("eu-0")
PROBLEMS = {"stub": "it is broken; revision `1`, served last, answers in its place"}


class Reloading(ScriptedClient):
    """A backend that says so when a reload finds a model broken."""

    @override
    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        """Return the state since."""
        return msgspec.structs.replace(state(endpoint.backend), problems=PROBLEMS)


async def test_what_a_reload_found_broken_is_known_before_the_next_probe_answers() -> None:
    fleet, client = Fleet(clock=Clock(), random=Random(1)), Reloading()
    fleet.configure((EU,), RoutingConfig())
    # Nothing is probed: a probe of a busy backend may be late.
    prober = Prober(fleet=fleet, client=client, random=Random(1))

    plans = PlanFollower(load=ServingPlans, client=client)
    await ModelReloader(fleet=fleet, client=client, prober=prober, plans=plans).reload()

    assert fleet.statistics()[0].problems == PROBLEMS
