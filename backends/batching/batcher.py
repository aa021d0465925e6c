"""Runs rows of many callers in batches, one thread per lane of the executor."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from backends.batching.admission import SOONEST, Admission, Reservation
from backends.batching.device import Device
from backends.batching.fair_queue import FlowKey
from backends.batching.lateness_margin import LatenessMargin
from backends.batching.meter import Meter
from backends.batching.policy import BatchLimits
from backends.batching.queue import DequeuedBatch, RowQueue
from backends.batching.room_queue import RoomQueue
from backends.batching.row import Row
from backends.batching.runner import Outcome, Runner
from backends.batching.width import ParallelismChoice
from backends.errors import (
    BackendError,
    ExecutorDied,
    Overloaded,
)
from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel
from backends.telemetry.spans import Tracing
from backends.types import QueueStatistics

_log = logging.getLogger(__name__)
# How much a new row moves the mean of what rows cost.
_WORK_SHARE = 0.02
# Items wait for room no longer than this share of their time: what is left is for the rows, or
# for another backend.
_ROOM_WAIT_SHARE = 0.5
# This share of a queue is kept for flows that hold no more than the 64th part of its rows.
_RESERVE = 1 / 8
_FEW = 64
# So many queues may stand in line: the items that one call may ask at once.
_MAX_WAITING_QUEUES = 16


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may wait."""

    rows: int = 4096
    tokens: int = 262_144

    def admit(self, *, rows: int, tokens: int, held: int) -> bool:
        """Whether so much may wait in all, for a flow that would hold `held` of the rows.

        The last eighth is for flows that hold few: no tenant shuts out the others.
        """
        few = self.rows // _FEW
        kept = 0 if held <= few or not few else _RESERVE
        most_rows, most_tokens = (most - int(most * kept) for most in (self.rows, self.tokens))
        return rows <= most_rows and tokens <= most_tokens


class Batcher:
    """Owns an executor's threads, `worker_threads` of them at most, and the queue they take from.

    `submit` belongs to the loop; results come back to it. Threads take their next batch by
    themselves, so that no lane waits for the loop between two batches.
    """

    def __init__(
        self,
        *,
        name: str,
        executor: ModelExecutor,
        batch: BatchLimits,
        queue: QueueLimits,
        clock: Callable[[], float],
        tracing: Tracing,
        cost: CostModel | None = None,
        device: Device | None = None,
        always_wide: bool = False,
        worker_threads: int | None = None,
    ) -> None:
        self.name = name
        self.failure: str | None = None
        self._executor = executor
        self._limits = queue
        self._clock = clock
        self._cost = cost or CostModel()
        self._queue = RowQueue(limits=batch, cost=self._cost, clock=clock)
        self._worker_threads = min(
            executor.worker_threads, worker_threads or executor.worker_threads
        )
        self._meter = Meter(worker_threads=self._worker_threads, clock=clock)
        self._width = ParallelismChoice(
            narrow=self._cost, wide=executor.wide_cost, always=always_wide
        )
        self._runner = Runner(
            executor=executor,
            queue=self._queue,
            meter=self._meter,
            cost=self._cost,
            clock=clock,
            tracing=tracing,
            backlog=self.backlog,
        )
        self._share = (device or Device(slots=self._worker_threads, clock=clock)).share()
        self._incoming: list[Row] = []
        self._incoming_flows: Counter[FlowKey] = Counter()
        self._incoming_tokens = 0
        self._room_queue = RoomQueue()
        self._margin = LatenessMargin()
        self.admission = Admission(
            name=name, queue=self._queue, meter=self._meter, margin=self._margin
        )
        """What decides whether work would be in time."""
        self._refused = 0
        self._row_work = 0.0
        self._live_threads = self._worker_threads
        self._threads: list[threading.Thread] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for lane in range(self._worker_threads):
            thread = threading.Thread(
                target=self._run_worker, args=(loop,), name=f"{self.name}-{lane}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live_threads = 0
        self._abandon(ExecutorDied("the backend is stopping"))
        for thread in self._threads:
            # A run that hangs must not keep the process; its thread is a daemon.
            await asyncio.to_thread(thread.join, 5.0)
        if not any(thread.is_alive() for thread in self._threads):
            self._share.close()
        # What the threads sent before they ended is in the loop's hands; let it arrive.
        await asyncio.sleep(0)

    @property
    def provider(self) -> str:
        """The execution provider that runs."""
        return self._executor.provider

    @property
    def worker_threads(self) -> int:
        """How many batches it runs at a time."""
        return self._worker_threads

    @property
    def batches(self) -> int:
        """How many batches it has run."""
        return self._meter.batches

    def submit(self, rows: Sequence[Row], reservation: Reservation | None = None) -> float:
        """Queue an item's rows; return their predicted seconds.

        Rows of one iteration of the loop reach the threads together.

        Raises:
            Overloaded: there is no room for all of them, or they would be late.
            ExecutorDied: nobody is left to run them.
        """
        if self._live_threads <= 0:
            raise ExecutorDied(f"the executor of `{self.name}` is gone; restart the backend")
        tokens = sum(row.length for row in rows)
        work = sum(self._cost.alone(row.length) for row in rows)
        self._row_work += _WORK_SHARE * (work / len(rows) - self._row_work)
        # Refused work counts, too: the shares follow what is asked for.
        self._arrived(work)
        flow = rows[0].flow
        if not self.fits(len(rows), tokens, flow):
            self._refused += len(rows)
            raise Overloaded(
                f"the queue of `{self.name}` is full; try again later",
                retry_after=self.backlog(),
            )
        try:
            time_left = max(row.deadline for row in rows) - self._clock()
            self.admission.take(work, time_left=time_left, flow=flow, reservation=reservation)
        except Overloaded:
            self._refused += len(rows)
            raise
        if not self._incoming:
            asyncio.get_running_loop().call_soon(self._flush)
        self._incoming += rows
        self._incoming_flows[flow] += len(rows)
        self._incoming_tokens += tokens
        self.admission.incoming += work
        return work

    def withdraw(self, rows: Sequence[Row]) -> list[Row]:
        """Take rows out of the queue that nobody waits for any more; return those."""
        if self._incoming:
            self._flush()
        removed = self._queue.withdraw(rows)
        if removed:
            self._room_queue.look()
        return removed

    async def wait_for_room(
        self, size: Callable[[], tuple[int, int]], *, flow: FlowKey, deadline: float
    ) -> None:
        """Wait in line until the queue has room for an item's rows: submit them at once then.

        `size` returns how many rows and tokens it would be: answers that arrive meanwhile make
        it less.

        Raises:
            Overloaded: the queue stays full, or too much waits for room already.
        """
        rows, _ = size()
        came = False
        if self._room_queue.rows + rows <= _MAX_WAITING_QUEUES * self._limits.rows:
            max_wait = (deadline - self._clock()) * _ROOM_WAIT_SHARE
            came = await self._room_queue.wait(
                lambda: self.fits(*size(), flow), rows=rows, flow=flow, max_wait=max_wait
            )
        if not came:
            self._refused += rows
            raise Overloaded(
                f"the queue of `{self.name}` is full; try again later", retry_after=self.backlog()
            )

    def count_refused(self, rows: int) -> None:
        """Count rows that were refused before their length was known."""
        self._refused += rows
        self._arrived(rows * self._row_work)

    def _arrived(self, work: float) -> None:
        # By the cost model alone: that a model with little traffic runs in small batches, which
        # are slower than predicted, must not earn it a larger share.
        self._share.arrived(work)

    def work(self, length: int) -> float:
        """Return the predicted seconds that a row of `length` tokens adds."""
        return self._cost.alone(length)

    def is_full(self, flow: FlowKey) -> bool:
        """Whether not even one more row of a flow would be taken now."""
        return self._room_queue.holds(flow) or not self.fits(1, 1, flow)

    def held(self, flow: FlowKey) -> int:
        """Return how many rows of a flow wait."""
        return self._queue.waiting(flow) + self._incoming_flows[flow]

    def fits(self, rows: int, tokens: int, flow: FlowKey) -> bool:
        """Whether there is room for so many rows of a flow; an empty queue takes any item.

        What needs no row, since all of it is known or on its way, always fits.
        """
        waiting = self._queue.rows + len(self._incoming)
        if not waiting or not rows:
            return True
        return self._limits.admit(
            rows=waiting + rows,
            tokens=self._queue.tokens + self._incoming_tokens + tokens,
            held=self.held(flow) + rows,
        )

    def backlog(self) -> float:
        """Return the seconds that what waits will take, at least a tenth of one."""
        return max(SOONEST, self.queued_seconds())

    def queued_seconds(self) -> float:
        """Return the seconds that what waits will take."""
        return (self._queue.seconds + self.admission.incoming) / self._meter.pace

    def statistics(self) -> QueueStatistics:
        """Return what waits and what was done."""
        statistics = self._meter.statistics(
            queued_rows=self._queue.rows + len(self._incoming),
            queued_tokens=self._queue.tokens + self._incoming_tokens,
            skipped=self._queue.skipped,
            expired=self._queue.expired,
            refused=self._refused,
        )
        return msgspec.structs.replace(statistics, queued_seconds=self.queued_seconds())

    def _flush(self) -> None:
        rows, self._incoming = self._incoming, []
        self._incoming_flows.clear()
        self._incoming_tokens, self.admission.incoming = 0, 0.0
        if self._live_threads > 0:
            self._queue.put(rows)
        else:
            self._deliver([(row, ExecutorDied("the executor is gone")) for row in rows])

    def _run_worker(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._queue.wait():
                # The batch is chosen when it can run, among all that waits by then.
                with self._share.slot() as use:
                    taken = self._queue.take()
                    if taken is not None:
                        use.seconds = taken.seconds * self._meter.slowness
                        self._run_taken(taken, loop, alone=use.alone)
                    use.more = self._queue.rows > 0
        except BaseException as error:  # noqa: BLE001 - whatever ends a lane must be told
            loop.call_soon_threadsafe(self._on_worker_death, error)

    def _run_taken(
        self, taken: DequeuedBatch, loop: asyncio.AbstractEventLoop, *, alone: bool
    ) -> None:
        outcomes: list[Outcome] = []
        started = self._clock()
        self._meter.begin(taken.work)
        try:
            outcomes += self._runner.expire(taken.dropped)
            wide = bool(taken.rows) and self._width.choose(
                alone=alone and not taken.more,
                rows=len(taken.rows),
                longest=max(row.length for row in taken.rows),
                tokens=sum(row.length for row in taken.rows),
            )
            outcomes += self._runner.run(taken.rows, wide=wide)
        finally:
            # A thread that dies here leaves no row behind.
            if len(outcomes) < len(taken.rows) + len(taken.dropped):
                settled = {id(row) for row, _ in outcomes}
                died = ExecutorDied("the executor died while it ran this row")
                left = (row for row in (*taken.dropped, *taken.rows) if id(row) not in settled)
                outcomes += [(row, died) for row in left]
            self._meter.stop(taken.work)
            loop.call_soon_threadsafe(self._deliver, outcomes)
        ended = self._clock()
        self._margin.learn(taken, ended)
        if taken.rows:
            took = ended - started
            self._meter.end(
                release=taken.release,
                predicted=taken.seconds,
                work=taken.work,
                took=took,
                more=taken.more or self.admission.reserved > 0.0,
            )
            self._queue.slowness = self._meter.slowness

    def _on_worker_death(self, error: BaseException) -> None:
        self._live_threads -= 1
        self.failure = f"a lane of the executor died with `{type(error).__name__}`"
        _log.error("an executor lane died", exc_info=error, extra={"model": self.name})
        if self._live_threads == 0:
            self._abandon(ExecutorDied(f"the executor of `{self.name}` died"))

    def _abandon(self, error: BackendError) -> None:
        self._deliver([(row, error) for row in self._queue.close()])

    def _deliver(self, outcomes: list[Outcome]) -> None:
        _settle(outcomes)
        self._room_queue.look()


def _settle(outcomes: list[Outcome]) -> None:
    for row, value in outcomes:
        row.span.end(value.code if isinstance(value, BackendError) else None)
        row.settle(row, value)
