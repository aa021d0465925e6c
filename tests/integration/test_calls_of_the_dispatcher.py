"""Calls over the real client end with the dispatches that made them, and leave nothing behind."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.upstream.http import HttpBackendClient
from testing.stub_backend import StubBackend, hang
from tests.support.dispatching import Outcomes, dispatch, endpoint_of, work

pytestmark = pytest.mark.anyio
_MISSES = 20


@asynccontextmanager
async def dispatcher_to(stub: StubBackend) -> AsyncIterator[Dispatcher]:
    clock = asyncio.get_running_loop().time
    target = endpoint_of(stub)
    fleet = Fleet(clock=clock, random=Random(1))
    fleet.configure((target,), RoutingConfig())
    fleet.observe(target, stub.state())
    async with (
        HttpBackendClient() as client,
        Dispatcher(fleet=fleet, client=client, reprobe=lambda _: None, clock=clock) as dispatcher,
    ):
        yield dispatcher


@pytest.fixture
def leftovers() -> Iterator[Callable[[], list[str]]]:
    """Give what tells the types of the gateway's objects that only the collector could free."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def found() -> list[str]:
        gc.collect()
        ours = (type(one) for one in gc.garbage)
        return [kind.__qualname__ for kind in ours if kind.__module__.startswith("gateway.")]

    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def test_missed_items_leave_nothing_to_the_garbage_collector(
    leftovers: Callable[[], list[str]],
) -> None:
    async with StubBackend() as stub, dispatcher_to(stub) as dispatcher:
        for count in (1, 16):
            for _ in range(_MISSES):
                deadline = asyncio.get_running_loop().time() + 60.0
                outcomes = Outcomes()
                await dispatch(dispatcher, work(count), deadline=deadline, settle=outcomes.settle)
        found = leftovers()

    assert found == []


async def test_a_dispatch_ends_at_its_deadline_whoever_shares_its_call() -> None:
    loop = asyncio.get_running_loop()
    soon, late = Outcomes(), Outcomes()
    async with StubBackend(behaviour=hang) as stub, dispatcher_to(stub) as dispatcher:
        now = loop.time()
        waiting = asyncio.create_task(
            dispatch(dispatcher, work(1), deadline=now + 600.0, settle=late.settle)
        )
        await dispatch(dispatcher, work(1), deadline=now + 0.05, settle=soon.settle)
        is_late_open = not waiting.done()
        waiting.cancel()
        await asyncio.wait((waiting,))

    assert soon.codes() == ["deadline_exceeded"]
    assert is_late_open
    assert late.codes() == ["cancelled"]
