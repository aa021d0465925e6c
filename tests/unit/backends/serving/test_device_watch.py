"""A watch tells a GPU that is lost from one whose driver is slow or wrong for a moment."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from sluicegate.backends.serving.device_watch import DeviceWatch, Look, watched_in_thread
from sluicegate.wire.protocol import GpuState

pytestmark = pytest.mark.anyio
STATE = GpuState(device=0, uuid="GPU-1", name="NVIDIA H100", used_bytes=1, total_bytes=2)
UNKNOWN, LOST, RESET_REQUIRED = 999, 15, 16


def looks(*answers: GpuState | int) -> Look:
    """Return what gives the answers in their order; one look too many fails."""
    following: Iterator[GpuState | int] = iter(answers)
    return lambda: next(following)


async def failure(look: Look, *, broken: list[str] | None = None) -> tuple[str, list[GpuState]]:
    """Return why the watch ended, and the states that it has passed on."""
    seen: list[GpuState] = []
    watch = DeviceWatch(look, failures=lambda: broken or [], seen=seen.append, interval=0)
    return await watch.until_failed(), seen


@pytest.mark.parametrize("error", [LOST, RESET_REQUIRED])
async def test_a_gpu_that_does_not_come_back_has_failed_at_once(error: int) -> None:
    reason, seen = await failure(looks(STATE, STATE, error))

    assert reason.endswith(f"(error {error})")
    assert seen == [STATE, STATE]


async def test_an_error_that_may_pass_is_looked_at_again() -> None:
    look = looks(UNKNOWN, UNKNOWN, STATE, UNKNOWN, UNKNOWN, UNKNOWN)

    reason, seen = await failure(look)

    assert "error 999" in reason
    assert seen == [STATE]


async def test_a_driver_that_hangs_has_failed() -> None:
    end = threading.Event()

    def hang() -> int:
        end.wait()
        return LOST

    watch = DeviceWatch(hang, failures=list, seen=lambda _: None, answers_within=0.01)

    assert await watch.until_failed() == "the driver has not answered for 0.01 s"
    end.set()


async def test_a_loop_that_is_held_up_is_no_driver_that_hangs() -> None:
    asked, answer = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def look() -> int:
        loop.call_soon_threadsafe(asked.set)
        answer.wait()
        return LOST

    watch = DeviceWatch(look, failures=list, seen=lambda _: None, answers_within=10)
    watching = asyncio.create_task(watch.until_failed())
    await asked.wait()
    passed = loop.time() + 1000
    loop.time = lambda: passed  # type: ignore[method-assign]
    await asyncio.sleep(0)
    answer.set()

    assert "error 15" in await watching


async def test_a_loop_that_loads_models_does_not_keep_a_lost_gpu() -> None:
    told, reasons = threading.Event(), list[str]()

    def failed(reason: str) -> None:
        reasons.append(reason)
        told.set()

    with watched_in_thread(looks(LOST), failed):
        assert told.wait(600)  # on the loop's own thread

    assert len(reasons) == 1
    assert reasons[0].endswith("(error 15)")


def test_a_gpu_lost_after_loading_is_for_the_next_watch() -> None:
    looked, loaded, reasons = threading.Event(), threading.Event(), list[str]()
    before = set(threading.enumerate())

    def look() -> int:
        looked.set()
        loaded.wait()
        return LOST

    with watched_in_thread(look, reasons.append):
        looked.wait()
        watching = set(threading.enumerate()) - before
    loaded.set()
    for thread in watching:
        thread.join()

    assert not reasons


async def test_work_that_failed_for_good_is_a_failure_of_the_gpu() -> None:
    reason, _ = await failure(looks(STATE), broken=["minilm: a worker thread died"])

    assert reason == "minilm: a worker thread died"
