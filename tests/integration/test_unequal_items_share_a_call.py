"""An item that shares a call with a far slower one is answered when it is done."""

import asyncio
from random import Random

import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.upstream.http import HttpBackendClient
from sluicegate.wire.protocol import Call, Report
from testing.stub_backend import Reply, StubBackend, echo
from tests.support.dispatching import Outcomes, dispatch, endpoint_of, served, work

pytestmark = pytest.mark.anyio


async def test_a_quick_item_is_answered_before_the_slow_one_of_its_call_ends() -> None:
    loop = asyncio.get_running_loop()
    is_answered = asyncio.Event()
    outcomes = [Outcomes(), Outcomes()]

    async def unequal(stub: StubBackend, call: Call, reply: Reply) -> None:
        """Go on with the second item until the caller of the first has its answer."""
        await reply.send(echo(call, 0, stub.backend_id), Report())
        await is_answered.wait()
        await reply.send(echo(call, 1, stub.backend_id), Report())
        await reply.end()

    model = served()

    async def ask(number: int, dispatcher: Dispatcher) -> None:
        settle = outcomes[number].settle
        await dispatch(dispatcher, work(1, model=model), deadline=loop.time() + 60.0, settle=settle)
        is_answered.set()

    async with StubBackend(behaviour=unequal) as stub, HttpBackendClient() as client:
        target = endpoint_of(stub)
        fleet = Fleet(clock=loop.time, random=Random(1))
        fleet.configure((target,), RoutingConfig())
        fleet.observe(target, stub.state())
        async with (
            Dispatcher(
                fleet=fleet, client=client, reprobe=lambda _: None, clock=loop.time
            ) as dispatcher,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(2):
                tasks.create_task(ask(number, dispatcher))

    assert [len(call.items) for call in stub.calls] == [2]
    assert [each.backends() for each in outcomes] == [["stub"], ["stub"]]
