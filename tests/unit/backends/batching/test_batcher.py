"""The runner: company for rows, isolation of bad ones, and the end of an executor."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from typing_extensions import override

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCaller, RowCoalescer
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.submission import RoomQueue
from sluicegate.backends.errors import BackendError, ExecutorDied, ModelFailed, Overloaded
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.onnx import explain
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import Encoding, FloatArray, OutputKind, padding_waste_ratio
from testing.waiting import until
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
POISON = 666
FLOW = ("interactive", "tenant")


def encode(*ids: int) -> Encoding:
    array = np.array(ids, dtype=np.int32)
    return Encoding(ids=array, type_ids=None, key=array.tobytes())


class Cramped(PacedExecutor):
    """Runs out of memory as ONNX Runtime does beyond so many tokens."""

    def __init__(self, gate: Gate, *, tokens: int) -> None:
        super().__init__(gate)
        self._tokens = tokens
        self.refused: list[int] = []

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        if batch.ids.size > self._tokens:
            self.refused.append(batch.ids.size)
            raise explain(RuntimeError("BFCArena: Failed to allocate memory for requested buffer"))
        return super().run(batch)


def caller(scope: str = "tenant") -> RowCaller:
    return RowCaller(scope=scope, deadline=time.monotonic() + 30.0)


@asynccontextmanager
async def running(
    executor: ModelExecutor, settings: BackendSettings | None = None
) -> AsyncIterator[tuple[RowCoalescer, Batcher]]:
    batcher = Batcher(
        name="tiny",
        executor=executor,
        settings=settings or BackendSettings(),
        limits=BatchLimits(rows=8),
        clock=time.monotonic,
        tracing=NO_TRACING,
    )
    async with batcher:
        yield RowCoalescer(digest="d", cache=RowCache(max_bytes=10**6), batcher=batcher), batcher


async def ask(rows: RowCoalescer, *encodings: Encoding) -> list[FloatArray]:
    return await rows.ask(encodings, kind=OutputKind.POOLED, caller=caller())


async def test_rows_that_arrive_while_a_batch_runs_leave_together() -> None:
    gate = Gate()
    executor = PacedExecutor(gate)
    async with running(executor) as (rows, batcher):
        first = asyncio.create_task(ask(rows, encode(1, 2)))
        await until(lambda: gate.arrived == 1)
        others = [asyncio.create_task(ask(rows, encode(n, n))) for n in range(3, 9)]
        await until(lambda: batcher.statistics().queued_rows == 6)
        gate.open()
        await asyncio.gather(first, *others)

    assert list(executor.shapes) == [(1, 2), (6, 2)]


async def test_a_row_gets_its_own_answer_whatever_its_company() -> None:
    encodings = [encode(*range(1, n)) for n in range(3, 12)]
    async with running(DummyExecutor(worker_threads=2)) as (rows, _):
        together = await ask(rows, *encodings)
    alone = []
    for encoding in encodings:
        async with running(DummyExecutor()) as (rows, _):
            alone += await ask(rows, encoding)

    for a, b in zip(together, alone, strict=True):
        assert np.array_equal(a, b)


async def test_a_poisoned_row_among_sixty_three_fails_alone() -> None:
    gate = Gate()
    async with running(PacedExecutor(gate, worker_threads=2, poison=POISON)) as (rows, batcher):
        tasks = [asyncio.create_task(ask(rows, encode(n + 1, 7))) for n in range(63)]
        poisoned = asyncio.create_task(ask(rows, encode(POISON, 7)))
        await until(lambda: gate.arrived == 2)
        gate.open()
        answers = await asyncio.gather(*tasks)
        with pytest.raises(ModelFailed):
            await poisoned

    assert len(answers) == 63
    assert batcher.failure is None
    assert batcher.statistics().failed_rows == 1


async def test_a_dying_executor_fails_its_rows_as_retryable_and_says_so() -> None:
    gate = Gate()
    gate.failing = ExecutorDied("the device failed")
    async with running(PacedExecutor(gate)) as (rows, batcher):
        tasks = [asyncio.create_task(ask(rows, encode(n + 1))) for n in range(20)]
        await until(lambda: gate.arrived == 1)
        gate.open()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: batcher.failure is not None)
        with pytest.raises(ExecutorDied):
            await ask(rows, encode(99))

    assert all(isinstance(r, BackendError) and r.retryable for r in results)


async def test_a_thread_that_dies_leaves_no_row_waiting() -> None:
    gate = Gate()
    gate.failing = SystemExit()
    async with running(PacedExecutor(gate)) as (rows, batcher):
        gate.open()
        with pytest.raises(ExecutorDied):
            await ask(rows, encode(1))
        await until(lambda: batcher.failure is not None)

    assert batcher.failure == "a worker thread of the executor died with `SystemExit`"


async def test_an_executor_that_fails_on_a_row_it_could_run_is_dead() -> None:
    gate = Gate()
    gate.open()
    async with running(PacedExecutor(gate)) as (rows, batcher):
        await ask(rows, encode(1))
        gate.failing = ModelFailed("broken")
        with pytest.raises(ExecutorDied):
            await ask(rows, encode(2))
        await until(lambda: batcher.failure is not None)


async def test_a_queue_that_stays_full_refuses_in_time_and_says_when_to_return() -> None:
    gate = Gate()
    limits = BackendSettings(max_queue_rows=2, max_queue_tokens=100)
    async with running(PacedExecutor(gate), limits) as (rows, batcher):
        running_row = asyncio.create_task(ask(rows, encode(1)))
        await until(lambda: gate.arrived == 1)
        waiting = asyncio.create_task(ask(rows, encode(2), encode(3)))
        await until(lambda: batcher.submissions.is_full(FLOW))
        hurried = RowCaller(scope="tenant", deadline=time.monotonic() + 0.2, lane="bulk")
        with pytest.raises(Overloaded) as refused:
            await rows.ask([encode(4)], kind=OutputKind.POOLED, caller=hurried)
        gate.open()
        await asyncio.gather(running_row, waiting)

    assert refused.value.retry_after > 0
    assert batcher.statistics().refused_rows == 1


async def test_items_with_more_rows_than_there_is_room_for_wait_and_are_answered() -> None:
    gate = Gate()
    limits = BackendSettings(max_queue_rows=10, max_queue_tokens=1000)
    most = 0

    def items() -> list[asyncio.Task[list[FloatArray]]]:
        return [
            asyncio.create_task(ask(rows, *(encode(8 * item + row + 1, 1) for row in range(8))))
            for item in range(8)
        ]

    async with running(PacedExecutor(gate), limits) as (rows, batcher):
        tasks = items()
        await until(lambda: gate.arrived == 1)
        full = batcher.submissions.is_full(FLOW)
        while not all(task.done() for task in tasks):
            most = max(most, batcher.statistics().queued_rows)
            gate.let_one_pass()
            await asyncio.sleep(0)
        answers = await asyncio.gather(*tasks)

    assert full
    assert [len(answer) for answer in answers] == [8] * 8
    assert most <= limits.max_queue_rows
    assert batcher.statistics().refused_rows == 0


async def test_an_item_larger_than_the_queue_enters_an_empty_one() -> None:
    async with running(
        DummyExecutor(), BackendSettings(max_queue_rows=2, max_queue_tokens=100)
    ) as (rows, _):
        answers = await ask(rows, *(encode(row + 1) for row in range(9)))

    assert len(answers) == 9


async def test_rows_that_become_known_while_an_item_stands_in_line_are_not_run_again() -> None:
    gate = Gate()
    executor = PacedExecutor(gate)
    async with running(executor, BackendSettings(max_queue_rows=4, max_queue_tokens=100)) as (
        rows,
        batcher,
    ):
        tasks = [
            asyncio.create_task(ask(rows, encode(10 + n), *map(encode, range(1, 5))))
            for n in range(4)
        ]
        await until(lambda: gate.arrived == 1)
        gate.open()
        await asyncio.gather(*tasks)

    assert batcher.statistics().rows == 4 + 4


async def test_an_item_whose_rows_are_known_or_on_their_way_needs_no_room() -> None:
    gate = Gate()
    async with running(
        PacedExecutor(gate), BackendSettings(max_queue_rows=2, max_queue_tokens=100)
    ) as (rows, batcher):
        first = asyncio.create_task(ask(rows, encode(1)))
        await until(lambda: gate.arrived == 1)
        gate.let_one_pass()
        await first
        running_row = asyncio.create_task(ask(rows, encode(2)))
        await until(lambda: gate.arrived == 2)
        waiting = asyncio.create_task(ask(rows, encode(3), encode(4)))
        await until(lambda: batcher.submissions.is_full(FLOW))
        in_line = asyncio.create_task(ask(rows, encode(5)))
        await asyncio.sleep(0)

        known = await asyncio.wait_for(ask(rows, encode(1)), 60.0)
        gate.open()
        joined = await ask(rows, encode(1), encode(3))
        await asyncio.gather(running_row, waiting, in_line)

    assert np.array_equal(known[0], joined[0])
    assert batcher.statistics().rows == 5
    assert batcher.statistics().refused_rows == 0


async def test_who_leaves_the_line_lets_the_next_one_in() -> None:
    gate = Gate()
    async with running(
        PacedExecutor(gate), BackendSettings(max_queue_rows=2, max_queue_tokens=100)
    ) as (rows, batcher):
        tasks = [asyncio.create_task(ask(rows, encode(n), encode(n, n))) for n in range(1, 3)]
        gone = asyncio.create_task(ask(rows, encode(8)))
        last = asyncio.create_task(ask(rows, encode(9)))
        await until(lambda: gate.arrived == 1 and batcher.submissions.is_full(FLOW))
        gone.cancel()
        gate.open()
        await asyncio.gather(*tasks, last)

    assert batcher.statistics().rows == 5


async def test_who_stands_in_line_when_the_executor_dies_is_told() -> None:
    gate = Gate()
    async with running(
        PacedExecutor(gate), BackendSettings(max_queue_rows=2, max_queue_tokens=100)
    ) as (rows, batcher):
        tasks = [asyncio.create_task(ask(rows, encode(n), encode(n, n))) for n in range(1, 6)]
        await until(lambda: gate.arrived == 1 and batcher.submissions.is_full(FLOW))
        gate.failing = ExecutorDied("the device failed")
        gate.open()
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(result, ExecutorDied) for result in results)


async def test_a_batch_that_finds_no_memory_halves_the_budget_and_its_rows_succeed() -> None:
    gate = Gate()
    executor = Cramped(gate, tokens=8)
    async with running(executor) as (rows, batcher):
        first = asyncio.create_task(ask(rows, encode(1, 1)))
        await until(lambda: gate.arrived == 1)
        others = [asyncio.create_task(ask(rows, encode(n, n))) for n in range(2, 18)]
        await until(lambda: batcher.statistics().queued_rows == 16)
        gate.open()
        answers = await asyncio.gather(first, *others)

    # Sixteen tokens found no memory once; the budget stays at half of that.
    assert executor.refused == [16]
    assert max(rows * length for rows, length in executor.shapes) == 8
    assert len(answers) == 17
    assert batcher.failure is None
    assert batcher.statistics().failed_rows == 0


async def test_a_cancelled_asker_s_rows_never_run() -> None:
    gate = Gate()
    executor = PacedExecutor(gate)
    async with running(executor) as (rows, batcher):
        first = asyncio.create_task(ask(rows, encode(1)))
        await until(lambda: gate.arrived == 1)
        gone = asyncio.create_task(ask(rows, encode(2), encode(3)))
        await until(lambda: batcher.statistics().queued_rows == 2)
        gone.cancel()
        await asyncio.wait([gone])
        gate.open()
        await first
        await until(lambda: batcher.statistics().queued_rows == 0)
        await ask(rows, encode(2))

    assert list(executor.shapes) == [(1, 1), (1, 1)]
    assert batcher.statistics().skipped_rows == 2


async def test_an_answer_that_is_not_finite_is_a_failure_of_its_row_only() -> None:
    class Infinite(DummyExecutor):
        @override
        def run(self, batch: PaddedBatch) -> FloatArray:
            values = super().run(batch)
            values[0, 0] = np.inf
            return values

    gate = Infinite()
    async with running(gate) as (rows, _):
        bad = asyncio.create_task(ask(rows, encode(1, 2)))
        good = asyncio.create_task(ask(rows, encode(3, 4)))
        with pytest.raises(ModelFailed):
            await bad
        (answer,) = await good

    assert np.isfinite(answer).all()


@pytest.mark.parametrize(
    "misshape",
    [lambda v: v[:-1], lambda v: np.concatenate([v[:1], v]), lambda v: v[:, :-1]],
    ids=["fewer rows", "more rows", "narrower"],
)
async def test_an_output_of_another_shape_fails_and_answers_no_row(
    misshape: Callable[[FloatArray], FloatArray],
) -> None:
    """Its values may belong to other rows."""

    class Misshapen(DummyExecutor):
        @override
        def run(self, batch: PaddedBatch) -> FloatArray:
            return misshape(super().run(batch))

    async with running(Misshapen()) as (rows, _):
        with pytest.raises(ModelFailed, match=r"has the shape .* instead of \(1, 8\)"):
            await ask(rows, encode(1, 2), encode(3, 4))


async def test_a_row_that_fails_only_beside_others_has_its_own_answer() -> None:
    class AlwaysOneRow(DummyExecutor):
        @override
        def run(self, batch: PaddedBatch) -> FloatArray:
            return super().run(batch)[:1]

    async with running(AlwaysOneRow()) as (rows, _):
        both = await ask(rows, encode(1, 2), encode(3, 4))
    async with running(DummyExecutor()) as (rows, _):
        expected = await ask(rows, encode(1, 2), encode(3, 4))

    assert np.array_equal(both, expected)


async def test_padding_waste_is_what_rows_would_not_take_alone() -> None:
    cost = DummyExecutor().cost
    async with running(DummyExecutor()) as (rows, batcher):
        await ask(rows, encode(*range(1, 11)), encode(*range(1, 10)))

    statistics = batcher.statistics()
    assert (statistics.tokens, statistics.padded_tokens) == (19, 20)
    useful = (cost.alone(10) + cost.alone(9)) / (2 * cost.alone(10))
    assert padding_waste_ratio(statistics) == pytest.approx(1 - useful)


async def test_a_row_that_comes_after_the_end_is_refused() -> None:
    async with running(DummyExecutor()) as (rows, _):
        late = asyncio.create_task(ask(rows, encode(1, 2)))
        await asyncio.sleep(0)

    with pytest.raises(ExecutorDied):
        await late
    with pytest.raises(ExecutorDied):
        await ask(rows, encode(3, 4))


async def test_the_line_counts_only_the_rows_that_stand_in_it() -> None:
    """Rows of items that came in, or left in vain, would fill it for ever."""
    line, flow = RoomQueue(), ("interactive", "tenant")

    came_in = await line.wait(lambda: True, rows=3, flow=flow, max_wait=60.0)
    left_in_vain = await line.wait(lambda: False, rows=3, flow=flow, max_wait=0.0)

    assert (came_in, left_in_vain) == (True, False)
    assert line.rows == 0
    assert not line.holds(flow)


async def test_who_leaves_the_queue_lets_the_next_one_of_the_line_in() -> None:
    gate = Gate()
    async with running(
        PacedExecutor(gate), BackendSettings(max_queue_rows=2, max_queue_tokens=100)
    ) as (rows, batcher):
        running_row = asyncio.create_task(ask(rows, encode(1)))
        await until(lambda: gate.arrived == 1)
        gone = asyncio.create_task(ask(rows, encode(2), encode(3)))
        await until(lambda: batcher.submissions.is_full(FLOW))
        in_line = asyncio.create_task(ask(rows, encode(4)))
        await until(lambda: batcher.submissions._room_queue.holds(FLOW))

        gone.cancel()
        await until(lambda: batcher.statistics().queued_rows == 1, within=10.0)
        gate.open()
        await asyncio.gather(running_row, in_line)


async def test_what_has_run_or_was_released_is_held_against_no_tenant() -> None:
    async with running(DummyExecutor()) as (rows, batcher):
        await ask(rows, encode(1), encode(2))
        reservations = batcher.admission.admit([0.1, 0.2], time_left=10.0, flow=FLOW)
        for reservation in reservations:
            reservation.release()

    assert batcher.submissions.held(FLOW) == 0
    assert batcher.admission.reserved == 0.0
    assert reservations[0].request.reserved == pytest.approx(0.0)
