"""How a worker thread has the event loop wake up on the core that it leaves."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Set as AbstractSet

import numpy as np
import pytest

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCaller, RowCoalescer
from sluicegate.backends.batching.loop_wakeup import LoopWakeup, system_affinity
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import Encoding, FloatArray, OutputKind
from tests.support.executors import PacedExecutor

pytestmark = pytest.mark.anyio
ALL = {0, 1, 2}


class RecordedAffinity:
    """Says that the caller runs on core 1, and keeps what threads are restricted to."""

    def __init__(
        self, steps: list[object], *, core: int = 1, allowed: AbstractSet[int] = frozenset(ALL)
    ) -> None:
        self._steps = steps
        self._core = core
        self._allowed = allowed
        self.refuses = False
        self.tells = True

    def current(self) -> int:
        return self._core

    def allowed(self) -> AbstractSet[int]:
        if not self.tells:
            raise PermissionError
        return set(self._allowed)

    def restrict(self, thread: int, cores: AbstractSet[int]) -> None:
        if self.refuses:
            raise PermissionError
        assert thread == threading.get_native_id()
        self._steps.append(set(cores))


def make_wakeup(affinity: RecordedAffinity, steps: list[object]) -> LoopWakeup:
    return LoopWakeup(steps.append, affinity)


def answer() -> None:
    """Stand for a callback."""


def test_the_loop_is_on_the_callers_core_while_it_is_woken() -> None:
    steps: list[object] = []

    scheduled: list[Callable[[], object]] = []

    def schedule(callback: Callable[[], object]) -> None:
        steps.append("schedule")
        scheduled.append(callback)

    LoopWakeup(schedule, RecordedAffinity(steps)).call_here(answer)

    assert steps == [{1}, "schedule", ALL]
    assert len(scheduled) == 1


def test_a_loop_that_is_quicker_than_its_caller_has_all_cores_when_it_calls() -> None:
    """Threads that it starts in the call keep its cores for good."""
    steps: list[object] = []

    def schedule(callback: Callable[[], object]) -> None:
        callback()

    LoopWakeup(schedule, RecordedAffinity(steps)).call_here(lambda: steps.append(answer))

    assert steps == [{1}, ALL, answer, ALL]


def test_the_kernel_chooses_the_core_of_other_calls() -> None:
    steps: list[object] = []

    make_wakeup(RecordedAffinity(steps), steps).call(answer)

    assert steps == [answer]


@pytest.mark.parametrize(
    ("core", "allowed"),
    [
        pytest.param(-1, ALL, id="the core is unknown"),
        pytest.param(7, ALL, id="the caller may no longer use its core"),
        pytest.param(1, {1}, id="there is one core"),
    ],
)
def test_the_loop_is_not_moved_where_that_gains_nothing(
    core: int, allowed: AbstractSet[int]
) -> None:
    steps: list[object] = []

    make_wakeup(RecordedAffinity(steps, core=core, allowed=allowed), steps).call_here(answer)

    assert steps == [answer]


def test_a_system_that_refuses_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[object] = []
    affinity = RecordedAffinity(steps)
    affinity.refuses = True
    wakeup = make_wakeup(affinity, steps)
    wakeup.call_here(answer)
    affinity.refuses = False

    wakeup.call_here(answer)

    assert steps == [answer, answer]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_call_is_scheduled_where_the_system_does_not_tell_the_cores() -> None:
    steps: list[object] = []
    affinity = RecordedAffinity(steps)
    affinity.tells = False

    make_wakeup(affinity, steps).call_here(answer)

    assert steps == [answer]


def test_a_loop_that_was_restricted_is_released_though_another_thread_was_refused() -> None:
    steps: list[object] = []
    affinity = RecordedAffinity(steps)
    is_first = True

    def schedule(_callback: Callable[[], object]) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            affinity.refuses = True
            wakeup.call_here(answer)
            affinity.refuses = False

    wakeup = LoopWakeup(schedule, affinity)
    wakeup.call_here(answer)

    assert steps == [{1}, ALL]


def test_a_loop_that_is_closed_may_use_all_cores_again() -> None:
    steps: list[object] = []

    def schedule(_callback: Callable[[], object]) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        LoopWakeup(schedule, RecordedAffinity(steps)).call_here(answer)

    assert steps == [{1}, ALL]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs the cores of Linux")
def test_linux_tells_and_sets_the_cores_of_threads() -> None:
    affinity = system_affinity()
    assert affinity is not None
    before = affinity.allowed()

    affinity.restrict(threading.get_native_id(), {min(before)})
    restricted, core = affinity.allowed(), affinity.current()
    affinity.restrict(threading.get_native_id(), before)

    assert restricted == {min(before)} == {core}
    assert affinity.allowed() == before == os.sched_getaffinity(0)


class OnCores(PacedExecutor):
    """Runs two batches at a time, on the cores that the event loop needs."""

    shares_cores = True

    def __init__(self) -> None:
        super().__init__(lambda _rows, _length: None, worker_threads=2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs the cores of Linux")
async def test_batches_leave_the_loop_all_its_cores() -> None:
    before = os.sched_getaffinity(0)
    batcher = Batcher(
        name="tiny",
        executor=OnCores(),
        settings=BackendSettings(),
        clock=time.monotonic,
        tracing=NO_TRACING,
    )

    async def ask(number: int) -> FloatArray:
        ids = np.array([number, number + 1], dtype=np.int32)
        encoding = Encoding(ids=ids, type_ids=None, key=ids.tobytes())
        who = RowCaller(scope="tenant", deadline=time.monotonic() + 30.0)
        return (await rows.ask([encoding], kind=OutputKind.POOLED, caller=who))[0]

    async with batcher:
        rows = RowCoalescer(digest="d", cache=RowCache(max_bytes=0), batcher=batcher)
        for first in range(0, 400, 8):
            await asyncio.gather(*[ask(first + place) for place in range(8)])

    assert batcher.batches > 1
    assert os.sched_getaffinity(0) == before
