"""An item that shares a call with a far slower one is answered when it is done."""

import asyncio
from random import Random

import pytest

from backends.protocol import Call, Report
from gateway.config.document import RoutingConfig
from gateway.dispatch.dispatcher import Dispatcher
from gateway.routing.fleet import Fleet
from gateway.upstream.http import HttpBackendClient
from loadtests.harness.stub_backend import Reply, StubBackend, echo
from tests.support.dispatching import Outcomes, dispatch, endpoint_of, work

pytestmark = pytest.mark.anyio

QUICK = 0.02
SLOW = 50 * QUICK


async def unequal(stub: StubBackend, call: Call, reply: Reply) -> None:
    """Take fifty times longer for the second item than for the first."""
    loop = asyncio.get_running_loop()
    for index, lasting in enumerate((QUICK, SLOW - QUICK)):
        done = loop.create_future()
        loop.call_later(lasting, done.set_result, None)
        await done
        await reply.send(echo(call, index, stub.backend_id), Report())
    await reply.end()


async def test_a_quick_item_is_answered_before_the_slow_one_of_its_call_ends() -> None:
    loop = asyncio.get_running_loop()
    took: list[float] = []
    outcomes = [Outcomes(), Outcomes()]

    async def ask(number: int, dispatcher: Dispatcher) -> None:
        started = loop.time()
        await dispatch(dispatcher, work(1), deadline=started + 20.0, settle=outcomes[number].settle)
        took.append(loop.time() - started)

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
    quick, slow = took
    assert quick < SLOW / 2 < slow
