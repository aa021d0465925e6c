"""When an item is sent to a second backend as well, and how often."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.hedging import Hedging, Latencies
from sluicegate.gateway.routing.endpoint_state import ProbeFailure
from sluicegate.gateway.types import Endpoint, RegionName, ServedModel
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Call, Report
from testing.stub_backend import stub_model
from testing.waiting import until
from tests.support.dispatch_scene import EU, US, Scene, failing, item_failure
from tests.support.dispatching import Outcomes, dispatch, endpoint, work
from tests.support.scripted_client import Pause, Step, echo_all

pytestmark = pytest.mark.anyio


def test_late_is_later_than_nineteen_of_twenty() -> None:
    latencies = Latencies()

    for number in range(1, 1001):
        latencies.note(number / 1000)

    assert 0.94 < latencies.late < 1.15


def test_a_few_stalls_do_not_move_it_and_many_do() -> None:
    rare, common = Latencies(), Latencies()

    for number in range(2000):
        rare.note(1.0 if number % 40 == 0 else 0.01)
        common.note(1.0 if number % 10 == 0 else 0.01)

    assert rare.late < 0.02
    assert common.late > 0.9


def test_hedges_are_a_share_of_items() -> None:
    hedging = Hedging()
    hedging.share = 0.05

    for _ in range(1000):
        hedging.earn(1)
    granted = sum(hedging.spend(1) for _ in range(1000))
    hedging.earn(20)

    assert granted == 16
    assert hedging.spend(1)
    assert not hedging.spend(1)


async def stalls(target: Endpoint, call: Call) -> AsyncIterator[Step]:
    """Never answer."""
    await asyncio.Event().wait()
    yield CallFailed(Cause.CUT, "unreachable")


async def test_a_late_item_is_answered_by_another_backend() -> None:
    scene = Scene({"eu-0": stalls}, routing=RoutingConfig(hedge_share=1.0))
    latencies = scene.dispatcher.hedging.of((work(1).model.info.name, work(1).task))
    for _ in range(100):
        latencies.note(0.01)

    outcomes = await scene.run(2)

    assert outcomes.backends() == ["us-0"] * 2
    assert scene.dispatcher.statistics().hedged == 2


async def test_an_item_of_a_model_owner_s_algorithm_is_not_hedged() -> None:
    """What hangs the algorithm at one backend would hang it at the next."""
    custom = msgspec.structs.replace(stub_model(), algorithm="custom")
    scene = Scene({"eu-0": stalls}, routing=RoutingConfig(hedge_share=1.0))
    latencies = scene.dispatcher.hedging.of((custom.name, work(1).task))
    for _ in range(100):
        latencies.note(0.01)

    await scene.run(
        1, within=0.3, model=ServedModel(info=custom, regions=(RegionName("eu"), RegionName("us")))
    )

    assert scene.dispatcher.statistics().hedged == 0


async def test_a_hedge_that_fails_leaves_the_item_to_the_first_backend() -> None:
    answers = asyncio.Event()

    async def late(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        await answers.wait()
        async for step in echo_all(target, call):
            yield step

    async def refuses(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        answers.set()
        yield CallFailed(Cause.REFUSED, "no", status=400, code="bad_call", retryable=False)

    scene = Scene({"eu-0": late, "us-0": refuses}, routing=RoutingConfig(hedge_share=1.0))
    latencies = scene.dispatcher.hedging.of((work(1).model.info.name, work(1).task))
    for _ in range(100):
        latencies.note(0.01)

    assert (await scene.run(1)).backends() == ["eu-0"]


@pytest.mark.parametrize("is_retryable", [True, False])
async def test_an_item_that_fails_at_both_backends_of_a_hedge_does_not_wait_for_its_deadline(
    *, is_retryable: bool
) -> None:
    hedge_failed = asyncio.Event()

    async def fails_first(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        yield item_failure(0, retryable=True)
        hedge_failed.set()
        yield Report()

    async def fails_later(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        await hedge_failed.wait()
        yield Pause()
        yield item_failure(0, retryable=is_retryable)
        yield Report()

    scene = Scene(
        {"eu-0": fails_later, "us-0": fails_first}, routing=RoutingConfig(hedge_share=1.0)
    )
    latencies = scene.dispatcher.hedging.of((work(1).model.info.name, work(1).task))
    for _ in range(100):
        latencies.note(0.01)

    async with asyncio.timeout(60.0):
        outcomes = await scene.run(1, within=600.0)

    assert [failure.retryable for failure in outcomes.failures()] == [is_retryable]
    assert scene.called() == ["eu-0", "us-0"]


async def test_an_item_that_fails_at_both_backends_of_a_hedge_goes_to_a_third() -> None:
    first_failed = asyncio.Event()

    async def fails_first(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        yield item_failure(0, retryable=True)
        first_failed.set()
        yield Report()

    async def fails_later(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        await first_failed.wait()
        yield Pause()
        yield item_failure(0, retryable=True)
        yield Report()

    third = endpoint("us-1", region="us", weight=0.01)
    scene = Scene(
        {"eu-0": fails_later, "us-0": fails_first},
        endpoints=(EU, US, third),
        routing=RoutingConfig(hedge_share=1.0),
    )
    latencies = scene.dispatcher.hedging.of((work(1).model.info.name, work(1).task))
    for _ in range(100):
        latencies.note(0.01)

    async with asyncio.timeout(60.0):
        outcomes = await scene.run(1, within=600.0)

    assert outcomes.backends() == ["us-1"]
    assert scene.called() == ["eu-0", "us-0", "us-1"]


async def test_where_there_is_no_second_backend_nothing_is_spent_on_a_hedge() -> None:
    async def late(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        due = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, due.set)
        await due.wait()
        async for step in echo_all(target, call):
            yield step

    scene = Scene({"eu-0": late}, endpoints=(EU,), routing=RoutingConfig(hedge_share=1.0))
    latencies = scene.dispatcher.hedging.of((work(1).model.info.name, work(1).task))
    for _ in range(100):
        latencies.note(0.001)
    await scene.run(1)

    assert scene.dispatcher.statistics().hedged == 0
    assert scene.dispatcher.hedging.spend(1)


async def test_the_loser_of_a_hedge_goes_on_and_is_heard() -> None:
    answers = asyncio.Event()

    async def late(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        await answers.wait()
        async for step in echo_all(target, call):
            yield step

    scene = Scene({"eu-0": late}, routing=RoutingConfig(hedge_share=1.0))
    latencies = scene.dispatcher.hedging.of((work(1).model.info.name, work(1).task))
    for _ in range(100):
        latencies.note(0.01)
    outcomes = Outcomes()
    async with scene.dispatcher:
        deadline = scene.loop.time() + 5.0
        await dispatch(scene.dispatcher, work(1), deadline=deadline, settle=outcomes.settle)
        while_late = [each.in_flight for each in scene.fleet.statistics()]
        answers.set()
        await until(lambda: scene.fleet.statistics()[0].in_flight == 0)

    assert outcomes.backends() == ["us-0"]
    assert while_late == [1, 0]
    assert scene.fleet.statistics()[0].failures == 0


async def test_what_waits_for_a_backend_that_is_lost_goes_elsewhere_at_once() -> None:
    scene = Scene({"eu-0": stalls})
    outcomes = Outcomes()
    async with scene.dispatcher:
        running = asyncio.create_task(
            dispatch(
                scene.dispatcher, work(3), deadline=scene.loop.time() + 5.0, settle=outcomes.settle
            )
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        scene.fleet.observe(EU, ProbeFailure(detail="refused"))
        await running

    assert outcomes.backends() == ["us-0"] * 3
    assert scene.dispatcher.statistics().hedged == 0


async def test_without_another_backend_a_lost_one_may_still_answer() -> None:
    scene = Scene({"eu-0": failing(Cause.CUT)}, endpoints=(EU,))

    assert (await scene.run(1)).codes() == ["upstream_unavailable"]
