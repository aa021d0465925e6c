"""Whatever backends do and whenever the caller leaves, every item is settled exactly once."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Call, Done, Failed, Report
from testing.stub_backend import echo
from testing.waiting import until
from tests.support.dispatching import Outcomes, dispatch, endpoint, state, work
from tests.support.scripted_client import Hang, Pause, Script, ScriptedClient, Step

pytestmark = pytest.mark.anyio

ENDPOINTS = (endpoint("eu-0"), endpoint("eu-1"), endpoint("us-0", region="us"))


def mischief(random: Random, index: int, call: Call, backend: str) -> Step:
    """Return something a backend may do at some item."""
    kinds: list[Step] = [
        Failed(index=index, status=500, code="run_failed", detail="", retryable=True),
        Failed(index=index, status=422, code="too_long", detail="", retryable=False),
        Done(index=index + 1000, result=b"{}", rows=1, tokens=1),
        echo(call, random.randrange(len(call.items)), backend),
        CallFailed(random.choice([*Cause]), "", code="revision_mismatch"),
        CallFailed(Cause.REFUSED, "", code="overloaded"),
        CallFailed(Cause.REFUSED, "", status=400, code="bad", retryable=False),
        Report(),
        Hang(),
        Pause(),
    ]
    return random.choice(kinds)


@pytest.mark.parametrize("block", range(10))
async def test_every_item_is_settled_exactly_once_and_never_with_anothers_answer(
    block: int,
) -> None:
    for seed in range(block * 60, block * 60 + 60):
        await one_run(Random(seed))


def mischievous(random: Random, trouble: float) -> Script:
    """Return backends that do something odd before this share of their answers."""

    async def script(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        for index in random.sample(range(len(call.items)), len(call.items)):
            if random.random() < trouble:
                yield mischief(random, index, call, target.backend)
            if random.random() < 0.2:
                yield Pause()
            yield echo(call, index, target.backend)
        if random.random() >= trouble:
            yield Report()

    return script


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def leave_early(random: Random, dispatcher: Dispatcher, running: asyncio.Task[None]) -> None:
    """Now and then cancel the caller, or close the dispatcher, in the middle."""
    what = random.random()
    if what < 0.2:
        await ticks(random.randrange(40))
        running.cancel()
    elif what < 0.3:
        await ticks(2)
        await dispatcher.__aexit__(None, None, None)


async def one_run(random: Random) -> None:
    loop = asyncio.get_running_loop()
    fleet = Fleet(clock=loop.time, random=random)
    fleet.configure(ENDPOINTS, RoutingConfig(attempt_timeout=0.01, eject_after=2))
    for each in ENDPOINTS:
        fleet.observe(each, state(each.backend))
    client = ScriptedClient(mischievous(random, random.choice([0.0, 0.01, 0.05, 0.3])))
    outcomes = Outcomes()
    given = work(random.choice([1, 2, 20, 80]))
    deadline = loop.time() + random.choice([0.0, 0.005, 0.05])

    async with Dispatcher(
        fleet=fleet, client=client, reprobe=lambda _: None, clock=loop.time
    ) as dispatcher:
        run = dispatch(dispatcher, given, deadline=deadline, settle=outcomes.settle)
        running = asyncio.create_task(run)
        await leave_early(random, dispatcher, running)
        await asyncio.wait((running,))
        # Calls may go on until the deadline at the latest.
        await until(lambda: not dispatcher.in_progress)

    if outcomes.by_index or not running.cancelled():
        assert len(outcomes.by_index) == len(given.items)
    for index, outcome in outcomes.by_index.items():
        assert outcome.failure is not None or f'"text {index}"'.encode() in outcome.result
    assert all(each.in_flight == 0 for each in fleet.statistics())
