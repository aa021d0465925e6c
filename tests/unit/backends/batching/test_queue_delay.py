"""How long a free worker thread waits for the rows of callers that come back."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from hypothesis import given, strategies as st
from typing_extensions import override

from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.queue_delay import FlightCounts, QueueDelayPolicy, expected_rows
from sluicegate.backends.batching.row import Row, RowWaiter
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, OutputKind
from tests.support.clock import Clock

# A batch takes so long that no wait ends by its time.
SLOW = CostModel(base=10_000.0)
COUNTS = st.integers(min_value=0, max_value=64)


class RecordedCondition(threading.Condition):
    """Keeps the timeouts of its waits."""

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__(lock)
        self.timeouts: list[float | None] = []

    @override
    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout)
        return super().wait(timeout)


def make_row(*, deadline: float = 1e9, lane: str = "interactive") -> Row:
    ids = np.ones(10, dtype=np.int32)
    row = Row(
        encoding=Encoding(ids=ids, type_ids=None, key=ids.tobytes()),
        key=("tenant", "graph", OutputKind.POOLED, ids.tobytes()),
        deadline=deadline,
        span=NO_SPAN,
        settle=lambda _row, _value: None,
        lane=lane,
    )
    row.join(RowWaiter(1, deadline=deadline, on_end=lambda *_: None), 0)
    return row


def make_queue(cost: CostModel = SLOW) -> RowQueue:
    return RowQueue(
        limits=BatchLimits(), cost=cost, clock=Clock(), delay=QueueDelayPolicy(threads=2)
    )


def run_batch(queue: RowQueue, rows: int) -> int:
    """Take a batch of so many rows, as a thread does that then runs it; return its rows."""
    queue.put([make_row() for _ in range(rows)])
    batch = queue.take()
    assert batch is not None
    return len(batch.rows)


def test_threads_share_the_rows_of_all_callers_alike() -> None:
    assert expected_rows(FlightCounts(waiting=4, running=16, ended=12), threads=2, most=16) == 16
    assert expected_rows(FlightCounts(waiting=1, running=2, ended=1), threads=2, most=16) == 2


@given(waiting=COUNTS, running=COUNTS, ended=COUNTS, most=st.integers(min_value=1, max_value=32))
def test_no_more_rows_are_expected_than_a_batch_may_have(
    waiting: int, running: int, ended: int, most: int
) -> None:
    load = FlightCounts(waiting=waiting, running=running, ended=ended)

    assert expected_rows(load, threads=2, most=most) <= max(most, waiting)


@given(waiting=COUNTS, ended=COUNTS)
def test_an_idle_device_waits_for_nothing(waiting: int, ended: int) -> None:
    load = FlightCounts(waiting=waiting, running=0, ended=ended)

    assert expected_rows(load, threads=2, most=16) == waiting


def test_waits_in_vain_become_few_and_waits_that_pay_come_back() -> None:
    delay = QueueDelayPolicy(threads=2)
    load = FlightCounts(waiting=1, running=8, ended=8)
    for _ in range(20):
        delay.learn(came_back=False)

    waits = [delay.rows(load, most=16) for _ in range(64)]
    assert waits.count(1) == 60
    assert waits.count(8) == 4

    for _ in range(8):
        delay.learn(came_back=True)
    assert delay.rows(load, most=16) == 8


def start_wait(thread: ThreadPoolExecutor) -> tuple[RowQueue, Future[bool]]:
    """Let a thread that has ended a batch of four wait for rows, while another runs as many."""
    queue = make_queue()
    ended, _ = run_batch(queue, 4), run_batch(queue, 4)
    queue.put([make_row()])
    waiting = thread.submit(queue.wait, ended)
    while not queue.awaited:
        pass
    return queue, waiting


def test_a_free_thread_waits_for_its_share_of_the_rows() -> None:
    """Eight rows in flight and two threads: it takes four."""
    with ThreadPoolExecutor(1) as thread:
        queue, waiting = start_wait(thread)
        for _ in range(3):
            assert not waiting.done()
            queue.put([make_row()])
        assert waiting.result()

    assert queue.rows == 4


def test_a_thread_waits_no_longer_once_the_other_has_ended() -> None:
    queue = make_queue()
    first, second = run_batch(queue, 4), run_batch(queue, 4)

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(queue.wait, ended) for ended in (first, second)]
        queue.put([make_row()])
        # Whichever of them gets the row; the other waits on.
        batch = None
        while batch is None:
            batch = queue.take() if any(each.done() for each in waiting) else None
        queue.close()

    assert len(batch.rows) == 1


def test_a_thread_waits_no_longer_once_the_other_has_died() -> None:
    with ThreadPoolExecutor(1) as thread:
        queue, waiting = start_wait(thread)
        queue.end_running(4)
        is_open = waiting.result(timeout=10.0)

    assert is_open
    assert queue.rows == 1


def test_a_thread_sleeps_while_another_waits_for_its_share() -> None:
    queue = make_queue()
    first, second = run_batch(queue, 4), run_batch(queue, 4)
    run_batch(queue, 4)
    changed = RecordedCondition(queue._changed._lock)  # type: ignore[attr-defined]
    queue._changed = changed
    queue.put([make_row()])

    with ThreadPoolExecutor(2) as threads:
        threads.submit(queue.wait, first)
        while not queue.awaited:
            pass
        threads.submit(queue.wait, second)
        while not changed.timeouts:
            pass
        queue.close()

    assert changed.timeouts == [None]


def test_a_row_that_is_due_soon_ends_the_wait() -> None:
    with ThreadPoolExecutor(1) as thread:
        queue, waiting = start_wait(thread)
        queue.put([make_row(deadline=10.0)])
        is_open = waiting.result(timeout=10.0)

    assert is_open
    assert queue.rows == 2


def test_a_batch_says_since_when_the_queue_was_not_empty() -> None:
    clock = Clock()
    queue = RowQueue(limits=BatchLimits(rows=1), cost=CostModel(), clock=clock)
    queue.put([make_row()])
    begun = clock()
    clock.advance(1.0)
    queue.put([make_row()])
    batches = [queue.take(), queue.take()]
    clock.advance(1.0)
    queue.put([make_row()])
    batches.append(queue.take())

    assert [each.waiting_since for each in batches if each] == [begun, begun, clock()]


def test_a_closed_queue_ends_the_wait() -> None:
    queue = make_queue()
    ended, _ = run_batch(queue, 4), run_batch(queue, 4)
    queue.put([make_row()])

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(queue.wait, ended)
        queue.close()

    assert not waiting.result()


def test_urgent_and_bulk_rows_wait_for_no_other() -> None:
    for row in (make_row(deadline=10.0), make_row(lane="bulk")):
        queue = make_queue()
        ended, _ = run_batch(queue, 4), run_batch(queue, 4)
        queue.put([row])

        assert queue.wait(ended)
        assert queue.rows == 1


def test_no_wait_is_longer_than_a_share_of_the_batch() -> None:
    """Here no time at all."""
    queue = make_queue(CostModel(base=0.0, padded=0.0, square=0.0))
    ended, _ = run_batch(queue, 4), run_batch(queue, 4)
    queue.put([make_row()])

    assert queue.wait(ended)
    assert queue.rows == 1
