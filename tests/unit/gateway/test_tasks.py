"""Tasks that outlive what started them."""

import asyncio
import logging

import pytest

from sluicegate.gateway.tasks import PeriodicTask, TaskScope, pause
from testing.waiting import until

pytestmark = pytest.mark.anyio


async def test_leaving_waits_for_what_still_runs() -> None:
    done: list[str] = []
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.append("work")

    async with TaskScope(drain=10.0) as owner:
        owner.start(work())
        asyncio.get_running_loop().call_soon(gate.set)

    assert done == ["work"]
    assert len(owner) == 0


async def test_what_takes_longer_than_the_drain_is_cancelled_and_may_clean_up() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("cleaned up")

    async with TaskScope(drain=0.01) as owner:
        owner.start(work())

    assert ended == ["cleaned up"]
    assert len(owner) == 0


async def test_what_is_started_while_others_are_cancelled_ends_as_well() -> None:
    ended: list[str] = []
    owner = TaskScope(drain=0.01)

    async def work(name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(name)
            if name == "first":
                owner.start(work("second"))
                await asyncio.sleep(0)

    async with owner:
        owner.start(work("first"))

    assert ended == ["first", "second"]
    assert len(owner) == 0


async def test_a_task_that_fails_is_logged_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []

    async def fail() -> None:
        raise RuntimeError("a bug")

    async def work() -> None:
        await asyncio.sleep(0)
        done.append("work")

    with caplog.at_level(logging.ERROR):
        async with TaskScope(drain=10.0) as owner:
            owner.start(fail())
            owner.start(work())

    assert done == ["work"]
    assert [record.getMessage() for record in caplog.records] == ["a background task failed"]


async def test_a_task_that_ended_is_not_kept() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        ended.set()

    async with TaskScope(drain=10.0) as owner:
        owner.start(work())
        running = len(owner)
        await ended.wait()
        await asyncio.sleep(0)

        assert (running, len(owner)) == (1, 0)


async def test_a_result_and_an_error_reach_the_caller() -> None:
    async def work(value: int) -> int:
        return 1 // value

    async with TaskScope() as tasks:
        assert await tasks.run(work(1)) == 1
        with pytest.raises(ZeroDivisionError):
            await tasks.run(work(0))


async def test_a_caller_that_is_cancelled_twice_leaves_the_cleanup_alone() -> None:
    started, may_clean, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await may_clean.wait()
            cleaned.set()

    async with TaskScope() as tasks:
        caller = asyncio.create_task(tasks.run(work()))
        await started.wait()
        caller.cancel()
        caller.cancel()
        await asyncio.wait((caller,))
        may_clean.set()
        await asyncio.wait_for(cleaned.wait(), 60.0)

    assert caller.cancelled()


async def test_an_error_in_work_nobody_waits_for_is_not_reported_as_forgotten() -> None:
    started = asyncio.Event()
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            raise ValueError

    async with TaskScope() as tasks:
        caller = asyncio.create_task(tasks.run(work()))
        await started.wait()
        caller.cancel()
        await asyncio.wait((caller,))

    assert len(tasks) == 0
    assert complaints == []


async def test_without_a_drain_leaving_cancels_what_still_runs() -> None:
    async with TaskScope() as tasks:
        task = tasks.create_task(asyncio.Event().wait())

    assert task.cancelled()


async def test_a_periodic_task_steps_each_interval_and_when_woken() -> None:
    steps: list[float] = []

    async def step() -> None:
        steps.append(0.0)

    async with PeriodicTask(step, interval=0.001, failure="it failed"):
        await until(lambda: len(steps) > 2)
    often = len(steps)
    async with PeriodicTask(step, interval=3_600.0, failure="it failed") as rare:
        rare.wake()
        await until(lambda: len(steps) == often + 1)

    assert len(steps) == often + 1


async def test_a_periodic_task_outlives_a_step_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[float] = []

    async def step() -> None:
        steps.append(0.0)
        raise ValueError

    async with PeriodicTask(step, interval=0.001, failure="the step failed"):
        await until(lambda: len(steps) > 1)

    assert "the step failed" in caplog.messages


async def test_leaving_a_periodic_task_waits_for_the_step_in_progress() -> None:
    begun, gate, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def step() -> None:
        begun.set()
        await gate.wait()
        done.set()

    async with PeriodicTask(step, interval=0.001, failure="it failed"):
        await begun.wait()
        asyncio.get_running_loop().call_soon(gate.set)

    assert done.is_set()


async def test_an_event_ends_a_pause() -> None:
    stop = asyncio.Event()
    waiting = asyncio.create_task(pause(stop, 3600.0))

    stop.set()

    await asyncio.wait_for(waiting, 60.0)


async def test_a_pause_ends_by_itself() -> None:
    await pause(asyncio.Event(), 0.001)
