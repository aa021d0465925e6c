"""A task that runs work settles each item once, whatever ends when."""

import asyncio

import pytest

from gateway.dispatch import failures
from gateway.dispatch.work_task import WorkTask
from gateway.types import ItemOutcome, Source
from tests.support.dispatching import Outcomes, work
from tests.support.inference_scene import RecordedTasks

pytestmark = pytest.mark.anyio


async def test_what_a_part_settles_after_the_end_changes_nothing(anyio_backend: str) -> None:
    tasks, outcomes = RecordedTasks(), Outcomes()
    task = WorkTask(work(2), outcomes.settle)

    async def hang() -> None:
        await asyncio.Event().wait()

    task.run(tasks, hang())
    task.cancel()
    await asyncio.wait(tasks.tasks)
    task.settle([(1, ItemOutcome(source=Source.COMPUTED, result=b"{}"))])

    assert outcomes.codes() == [failures.CANCELLED.code] * 2
