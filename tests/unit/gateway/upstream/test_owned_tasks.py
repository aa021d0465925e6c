"""Work that outlives whoever waits for it."""

import asyncio

import pytest

from gateway.upstream.tasks import OwnedTasks

pytestmark = pytest.mark.anyio


async def test_a_result_and_an_error_reach_the_caller() -> None:
    async def work(value: int) -> int:
        return 1 // value

    async with OwnedTasks() as tasks:
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

    async with OwnedTasks() as tasks:
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

    async with OwnedTasks() as tasks:
        caller = asyncio.create_task(tasks.run(work()))
        await started.wait()
        caller.cancel()
        await asyncio.wait((caller,))

    assert len(tasks) == 0
    assert complaints == []


async def test_leaving_cancels_what_still_runs() -> None:
    async with OwnedTasks() as tasks:
        task = tasks.start(asyncio.Event().wait())

    assert task.cancelled()
