"""Requests that are of use as a whole only: one item that fails ends the work on the others."""

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from sluicegate.gateway.api.answers import first_failure
from sluicegate.gateway.dispatch.work import OpenItem
from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.types import ItemFailure, Source
from testing.waiting import until
from tests.support.inference_scene import FailingRunner, Scene

pytestmark = pytest.mark.anyio
BUSY = ItemFailure(status=503, code="overloaded", detail="Busy.", retryable=True, retry_after=2.5)


@pytest.fixture
async def runner(anyio_backend: str) -> FailingRunner:
    return FailingRunner(BUSY)


async def test_a_request_whose_item_failed_is_answered_at_once_and_its_work_given_up(
    runner: FailingRunner,
) -> None:
    scene = Scene(runner=runner)

    answer = await scene.ask("a", "b", "c", within=60.0)
    await until(lambda: bool(runner.cancelled))

    error = first_failure(answer, continue_on_error=False)
    assert isinstance(error, Overloaded)
    assert error.retry_after == 2.5
    assert runner.works[0].atomic
    assert scene.flights.statistics().in_flight == 0


async def test_items_that_may_fail_alone_are_waited_for(runner: FailingRunner) -> None:
    scene = Scene(runner=runner)

    answer = await scene.ask("a", "b", within=0.05, continue_on_error=True)

    codes = [outcome.failure.code for outcome in answer.outcomes if outcome.failure]
    assert codes == ["overloaded", "deadline_exceeded"]
    assert not runner.cancelled
    assert not runner.works[0].atomic


async def test_work_that_another_request_waits_for_goes_on(runner: FailingRunner) -> None:
    gate = asyncio.Event()

    class Later(FailingRunner):
        """Lets a second request join before the first has failed."""

        @override
        async def _run(self, items: Sequence[OpenItem]) -> None:
            await gate.wait()
            await super()._run(items)

    later = Later(BUSY)
    scene = Scene(runner=later)
    first = asyncio.create_task(scene.ask("a", "b", within=60.0))
    await until(lambda: scene.flights.statistics().in_flight == 2)
    joined = asyncio.create_task(scene.ask("b", within=0.2))
    await until(lambda: scene.flights.statistics().joined == 1)
    gate.set()
    await first
    await joined

    assert not later.cancelled
    for task in scene.runner.tasks.tasks:
        task.cancel()
    await asyncio.gather(*scene.runner.tasks.tasks, return_exceptions=True)


async def test_a_request_that_joined_an_item_ends_with_it(runner: FailingRunner) -> None:
    scene = Scene(runner=runner)
    waiting = asyncio.create_task(scene.ask("other", "slow", within=60.0, continue_on_error=True))
    await until(lambda: bool(runner.works))

    answer = await scene.ask("fails", "slow", within=60.0)

    assert [outcome.source for outcome in answer.outcomes] == [Source.FAILED] * 2
    assert not waiting.done()
    waiting.cancel()
    for task in scene.runner.tasks.tasks:
        task.cancel()
    await asyncio.gather(waiting, *scene.runner.tasks.tasks, return_exceptions=True)
