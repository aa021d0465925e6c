"""What goes wrong around a batch: whose rows are told, which run again, what is counted."""

import asyncio
import time

import numpy as np
import pytest
from typing_extensions import override

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCaller, RowCoalescer
from sluicegate.backends.batching.device import Device
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.errors import DeadlineExceeded, ExecutorDied, ModelFailed, Overloaded
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import Encoding, FloatArray, OutputKind
from testing.waiting import until
from tests.support.clock import Clock
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
POISON = 666


def encode(*ids: int) -> Encoding:
    array = np.array(ids, dtype=np.int32)
    return Encoding(ids=array, type_ids=None, key=array.tobytes())


class Bench:
    """A batcher over an executor and its rows, on a clock of its own."""

    def __init__(
        self,
        executor: ModelExecutor,
        *,
        device: Device | None = None,
        settings: BackendSettings | None = None,
    ) -> None:
        self.clock = Clock()
        self.batcher = Batcher(
            name="tiny",
            executor=executor,
            settings=settings or BackendSettings(max_queue_rows=4, max_queue_tokens=100),
            limits=BatchLimits(rows=8),
            clock=self.clock,
            tracing=NO_TRACING,
            device=device,
        )
        self.rows = RowCoalescer(digest="d", cache=RowCache(max_bytes=10**6), batcher=self.batcher)

    def ask(
        self,
        *encodings: Encoding,
        scope: str = "tenant",
        patience: float = 30.0,
        lane: str = "interactive",
    ) -> "asyncio.Task[list[FloatArray]]":
        caller = RowCaller(scope=scope, deadline=self.clock() + patience, lane=lane)
        return asyncio.create_task(self.rows.ask(encodings, kind=OutputKind.POOLED, caller=caller))


class BrokenCost(CostModel, frozen=True, kw_only=True):
    """Fails when a batch is chosen."""

    @override
    def seconds(self, *, rows: int, longest: int, tokens: int) -> float:
        raise ArithmeticError


async def test_a_thread_that_dies_while_it_chooses_a_batch_leaves_no_row_waiting() -> None:
    bench = Bench(DummyExecutor())
    bench.batcher.submissions.queue._cost = BrokenCost()
    async with bench.batcher:
        with pytest.raises(ExecutorDied):
            async with asyncio.timeout(60.0):
                await bench.ask(encode(1), encode(2))


async def test_rows_of_a_thread_that_died_count_as_running_no_more() -> None:
    """The other thread would wait for their callers after each of its batches."""
    gate = Gate()
    gate.failing = SystemExit()
    bench = Bench(PacedExecutor(gate, worker_threads=2))
    queue = bench.batcher.submissions.queue
    async with bench.batcher:
        fatal = bench.ask(encode(1))
        await until(lambda: gate.arrived == 1)
        running = queue._running
        gate.open()
        with pytest.raises(ExecutorDied):
            await fatal
        await until(lambda: bench.batcher.failure is not None)
        gate.failing = None
        await bench.ask(encode(2))
        await until(lambda: queue._running == 0)

    assert running == 1


async def test_rows_are_not_shared_with_a_thread_that_died() -> None:
    gate = Gate()
    gate.failing = SystemExit()
    gate.open()
    executor = PacedExecutor(gate, worker_threads=2)
    executor.shares_cores = True
    bench = Bench(executor)
    async with bench.batcher:
        with pytest.raises(ExecutorDied):
            await bench.ask(encode(1))
        await until(lambda: bench.batcher.failure is not None)
        gate.failing = None
        await bench.ask(*(encode(*[number] * 20) for number in range(4)))

    assert list(executor.shapes) == [(4, 20)]


class Breathless(DummyExecutor):
    """Has no memory for arrays of more than a row."""

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        if len(batch.ids) > 1:
            raise MemoryError
        return super().run(batch)


async def test_a_batch_for_which_python_finds_no_memory_is_halved_too() -> None:
    bench = Bench(Breathless())
    async with bench.batcher:
        answers = await bench.ask(*(encode(n) for n in range(1, 5)))

    assert len(answers) == 4
    assert bench.batcher.failure is None


async def test_rows_whose_time_ends_while_their_batch_fails_do_not_run_again() -> None:
    gate = Gate()
    executor = PacedExecutor(gate, poison=POISON)
    bench = Bench(executor)
    async with bench.batcher:
        first = bench.ask(encode(9, 9))
        await until(lambda: gate.arrived == 1)
        hurried = [bench.ask(encode(n, n), patience=1.0) for n in (1, 2)]
        patient = bench.ask(encode(3, 3))
        poisoned = bench.ask(encode(POISON, 1))
        await until(lambda: bench.batcher.statistics().queued_rows == 4)
        gate.let_one_pass()
        await until(lambda: gate.arrived == 2)
        bench.clock.advance(2.0)
        gate.open()
        results = await asyncio.gather(first, patient, poisoned, *hurried, return_exceptions=True)

    assert isinstance(results[2], ModelFailed)
    assert all(isinstance(result, DeadlineExceeded) for result in results[3:])
    statistics = bench.batcher.statistics()
    assert (statistics.late_rows, statistics.expired_rows) == (0, 2)


async def test_a_batcher_that_stops_leaves_nothing_at_its_device() -> None:
    device = Device(slots=1, clock=time.monotonic)
    for _ in range(3):
        bench = Bench(DummyExecutor(), device=device)
        async with bench.batcher:
            await bench.ask(encode(1))

    assert device.shares == 0


async def test_an_interactive_item_takes_a_row_out_of_the_bulk_lane() -> None:
    gate = Gate()
    bench = Bench(PacedExecutor(gate))
    async with bench.batcher:
        first = bench.ask(encode(9, 9, 9))
        await until(lambda: gate.arrived == 1)
        bulk = bench.ask(encode(1), lane="bulk")
        await until(lambda: bench.batcher.statistics().queued_rows == 1)
        interactive = [bench.ask(encode(1)) for _ in range(2)]
        await until(lambda: bench.batcher.statistics().queued_rows == 2)
        gate.open()
        answers = await asyncio.gather(first, bulk, *interactive)
        await until(lambda: bench.batcher.statistics().queued_rows == 0)

    statistics = bench.batcher.statistics()
    assert len(answers) == 4
    assert (statistics.rows, statistics.skipped_rows) == (2, 1)


async def test_a_row_in_flight_runs_in_time_for_whoever_has_the_least_of_it() -> None:
    gate = Gate()
    executor = PacedExecutor(gate)
    bench = Bench(executor)
    async with bench.batcher:
        first = bench.ask(encode(9, 9, 9))
        await until(lambda: gate.arrived == 1)
        patient = bench.ask(encode(1, 1), patience=20.0)
        other = bench.ask(encode(*range(1, 61)), patience=10.0)
        await until(lambda: bench.batcher.statistics().queued_rows == 2)
        hurried = bench.ask(encode(1, 1), patience=5.0)
        await until(lambda: bench.batcher.statistics().queued_rows == 3)
        gate.open()
        await asyncio.gather(first, patient, other, hurried)

    assert list(executor.shapes) == [(1, 3), (1, 2), (1, 60)]


async def test_rows_asked_twice_by_one_item_run_once() -> None:
    bench = Bench(DummyExecutor())
    async with bench.batcher:
        answers = await bench.ask(encode(1), encode(1), encode(2))

    assert len(answers) == 3
    assert bench.batcher.statistics().rows == 2


async def test_a_tenant_that_fills_the_queue_leaves_room_for_another() -> None:
    gate = Gate()
    bench = Bench(
        PacedExecutor(gate), settings=BackendSettings(max_queue_rows=128, max_queue_tokens=10_000)
    )
    async with bench.batcher:
        first = bench.ask(encode(9))
        await until(lambda: gate.arrived == 1)
        greedy = [bench.ask(encode(n, 1), lane="bulk", scope="greedy") for n in range(1, 200)]
        await until(lambda: bench.batcher.submissions.is_full(("bulk", "greedy")))
        full_for_all = bench.batcher.submissions.is_full(("interactive", "modest"))
        modest = bench.ask(encode(1), scope="modest", patience=2.0)
        await until(lambda: bench.batcher.statistics().queued_rows == 113)
        gate.open()
        answering = asyncio.gather(first, modest, *greedy)

        def are_answered_later() -> bool:
            # Bulk batches pause after each other, as interactive work has come.
            bench.clock.advance(0.01)
            return answering.done()

        await until(are_answered_later)
        answers = await answering

    assert not full_for_all
    assert len(answers) == 201


async def test_a_tenant_with_few_rows_is_not_counted_those_that_others_ask_at_the_same_moment() -> (
    None
):
    gate = Gate()
    bench = Bench(
        PacedExecutor(gate), settings=BackendSettings(max_queue_rows=128, max_queue_tokens=10_000)
    )
    async with bench.batcher:
        first = bench.ask(encode(9))
        await until(lambda: gate.arrived == 1)
        greedy = [bench.ask(encode(n, 1), scope="greedy") for n in range(1, 200)]
        await until(lambda: bench.batcher.submissions.is_full(("interactive", "greedy")))
        before = bench.batcher.statistics().queued_rows
        modest = [bench.ask(encode(n), encode(n, n), scope=f"modest-{n}") for n in range(1, 4)]
        await until(lambda: bench.batcher.statistics().queued_rows == before + 6)
        gate.open()
        await asyncio.gather(first, *modest, *greedy)


async def test_a_tenant_is_not_refused_for_what_another_has_waiting() -> None:
    gate = Gate()
    bench = Bench(
        PacedExecutor(gate), settings=BackendSettings(max_queue_rows=4096, max_queue_tokens=262_144)
    )
    long = range(1, 100)
    async with bench.batcher:
        first = bench.ask(encode(9))
        await until(lambda: gate.arrived == 1)
        greedy = [bench.ask(encode(n, *long), scope="greedy", patience=1.0) for n in range(100)]
        refused = [task for task in greedy if await _is_refused(task)]
        modest = bench.ask(encode(1), scope="modest", patience=0.5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(first, modest)
        await asyncio.gather(*greedy, return_exceptions=True)

    assert refused


async def _is_refused(task: "asyncio.Task[list[FloatArray]]") -> bool:
    await asyncio.sleep(0)
    return task.done() and isinstance(task.exception(), Overloaded)
