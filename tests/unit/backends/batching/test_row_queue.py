"""The queue between the loop and the worker threads."""

import math
from typing import Any

import numpy as np
import pytest

from sluicegate.backends.batching.bulk_pause import BulkPause
from sluicegate.backends.batching.policy import BatchLimits, Release
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.row import Row, RowWaiter
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, OutputKind
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio


def make_row(
    length: int,
    *,
    deadline: float = 2_000.0,
    kind: OutputKind = OutputKind.POOLED,
    lane: str = "interactive",
) -> tuple[Row, RowWaiter]:
    ids = np.ones(length, dtype=np.int32)
    row = Row(
        encoding=Encoding(ids=ids, type_ids=None, key=ids.tobytes()),
        key=("tenant", "graph", kind, ids.tobytes()),
        deadline=deadline,
        span=NO_SPAN,
        settle=lambda _row, _value: None,
        lane=lane,
    )
    waiter = RowWaiter(1, deadline=deadline, on_end=lambda *_: None)
    row.join(waiter, 0)
    return row, waiter


def make_queue(clock: Clock) -> RowQueue:
    return RowQueue(limits=BatchLimits(rows=4), cost=CostModel(base=2e-3), clock=clock)


async def test_the_oldest_row_leads_and_rows_of_its_length_go_with_it() -> None:
    queue = make_queue(Clock())
    rows = [make_row(length)[0] for length in (10, 40, 10, 11)]
    queue.put(rows)

    first, second = queue.take(), queue.take()

    assert first is not None
    assert second is not None
    assert [row.length for row in first.rows] == [10, 10, 11]
    assert [row.length for row in second.rows] == [40]
    assert (queue.rows, queue.tokens) == (0, 0)


@pytest.mark.parametrize(("length", "idle", "sizes"), [(40, 1, [2, 2]), (40, 0, [4]), (1, 1, [4])])
async def test_idle_threads_share_rows_that_so_end_much_sooner(
    length: int, idle: int, sizes: list[int]
) -> None:
    """Short rows take hardly longer in one batch."""
    queue = make_queue(Clock())
    queue.put([make_row(length)[0] for _ in range(4)])

    batches = [queue.take(idle=idle), queue.take()]

    assert [len(batch.rows) for batch in batches if batch is not None] == sizes
    assert batches[0] is not None
    assert (batches[0].release is Release.SHARED) == (len(sizes) > 1)


async def test_idle_threads_share_online_rows_while_bulk_rows_wait() -> None:
    """Bulk rows need no place in the batch, whose traffic class is another."""
    queue = make_queue(Clock())
    online = [make_row(40)[0] for _ in range(4)]
    queue.put([*online, *(make_row(40, lane="bulk")[0] for _ in range(8))])

    batch = queue.take(idle=1)

    assert batch is not None
    assert batch.rows == online[:2]


async def test_bulk_rows_are_left_together() -> None:
    queue = make_queue(Clock())
    queue.put([make_row(40, lane="bulk")[0] for _ in range(4)])

    batch = queue.take(idle=1)

    assert batch is not None
    assert len(batch.rows) == 4


async def test_rows_whose_askers_have_gone_are_dropped() -> None:
    queue = make_queue(Clock())
    (gone, waiter), (wanted, _) = make_row(10), make_row(10)
    queue.put([gone, wanted])
    waiter.leave()

    taken = queue.take()

    assert taken is not None
    assert taken.rows == [wanted]
    assert taken.dropped == [gone]
    assert queue.skipped == 1


async def test_rows_past_their_deadline_do_not_run() -> None:
    clock = Clock()
    queue = make_queue(clock)
    (late, _), (early, _) = make_row(10, deadline=1_001.0), make_row(12)
    queue.put([late, early])
    clock.advance(1.0)

    taken = queue.take()

    assert taken is not None
    assert taken.rows == [early]
    assert taken.dropped == [late]
    assert queue.expired == 1


async def test_a_batch_holds_one_kind_of_output() -> None:
    queue = make_queue(Clock())
    rows = [make_row(10)[0], make_row(10, kind=OutputKind.TOKENS)[0], make_row(10)[0]]
    queue.put(rows)

    taken = queue.take()

    assert taken is not None
    assert taken.rows == [rows[0], rows[2]]


async def test_closing_returns_what_waits_and_lets_takers_go() -> None:
    queue = make_queue(Clock())
    row, _ = make_row(10)
    queue.put([row])

    left = queue.close()

    assert left == [row]
    assert queue.take() is None


async def test_by_arrival_the_oldest_rows_go_together_whatever_their_lengths() -> None:
    limits = BatchLimits(rows=3, by_arrival=True)
    queue = RowQueue(limits=limits, cost=CostModel(base=2e-3), clock=Clock())
    queue.put([make_row(length)[0] for length in (10, 200, 11, 12)])

    first, second = queue.take(), queue.take()

    assert first is not None
    assert second is not None
    assert [row.length for row in first.rows] == [10, 200, 11]
    assert [row.length for row in second.rows] == [12]
    assert (queue.rows, queue.tokens) == (0, 0)


@pytest.mark.parametrize("other", [{"kind": OutputKind.TOKENS}, {"lane": "bulk"}])
async def test_by_arrival_a_batch_holds_one_kind_of_output_and_one_traffic_class(
    other: dict[str, Any],
) -> None:
    queue = RowQueue(limits=BatchLimits(by_arrival=True), cost=CostModel(base=2e-3), clock=Clock())
    rows = [make_row(10)[0], make_row(11, **other)[0], make_row(12)[0]]
    queue.put(rows)

    batches = [batch.rows for _ in rows if (batch := queue.take()) is not None]

    assert sorted(row.length for batch in batches for row in batch) == [10, 11, 12]
    assert all(len({row.batch_class for row in batch}) == 1 for batch in batches)


async def test_beside_interactive_rows_bulk_batches_are_short_and_pause_after_each() -> None:
    clock = Clock()
    queue = make_queue(clock)
    queue.put([make_row(100)[0], *(make_row(100, lane="bulk")[0] for _ in range(8))])
    interactive, bulk = queue.take(), queue.take()
    assert interactive is not None
    assert bulk is not None

    paused, runnable = queue.take(), queue.runnable
    clock.advance(bulk.seconds * 25.5)
    after = queue.take()

    assert (paused, runnable) == (None, 0)
    assert after is not None
    assert len(bulk.rows) == len(after.rows) < 4
    assert bulk.seconds <= 2 * interactive.seconds


async def test_an_interactive_row_runs_while_bulk_rows_pause() -> None:
    queue = make_queue(Clock())
    queue.put([make_row(10)[0], *(make_row(10, lane="bulk")[0] for _ in range(4))])
    for _ in range(2):
        queue.take()
    row, _ = make_row(12)

    queue.put([row])
    taken = queue.take()

    assert taken is not None
    assert taken.rows == [row]
    assert not taken.more


async def test_without_interactive_rows_bulk_batches_are_full_and_do_not_pause() -> None:
    clock = Clock()
    queue = make_queue(clock)
    queue.put([make_row(10)[0]])
    queue.take()
    clock.advance(60.0)

    queue.put([make_row(10, lane="bulk")[0] for _ in range(8)])
    taken = [queue.take(), queue.take()]

    assert [batch and len(batch.rows) for batch in taken] == [4, 4]


async def test_a_pause_is_short_whatever_a_batch_takes() -> None:
    """What waits in one would have its calls end by their deadlines."""
    clock = Clock()
    pause = BulkPause(0.04)
    pause.began("interactive", 10.0, clock())

    pause.began("bulk", 10.0, clock())

    assert pause.until == clock() + 12.0
    # Batches of several rows keep to the share.
    assert pause.limit(clock()) == pytest.approx(2.0 * 0.04 / 0.96)


async def test_with_all_of_the_time_bulk_batches_do_not_pause() -> None:
    clock = Clock()
    pause = BulkPause(1.0)
    pause.began("interactive", 1.0, clock())

    pause.began("bulk", 1.0, clock())

    assert pause.until == clock() + 1.0
    assert 0.0 < pause.limit(clock()) < math.inf


async def test_what_interactive_rows_will_take_leaves_out_bulk_rows() -> None:
    queue = make_queue(Clock())
    rows = [make_row(100, lane=lane)[0] for lane in ("bulk", "interactive", "bulk")]
    queue.put(rows)
    both = queue.interactive_seconds

    taken = [queue.take() for _ in range(2)]

    assert all(taken)
    assert both == pytest.approx(rows[1].work)
    assert queue.interactive_seconds == 0.0
