"""Simulates a backend: the real code for queue, admission and batching, and a simulated device.

The device computes nothing. A timer of the event loop ends each batch; no thread runs it.
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from random import Random

import numpy as np

from sluicegate.backends.batching.admission import Admission
from sluicegate.backends.batching.device import Device
from sluicegate.backends.batching.fair_queue import INTERACTIVE
from sluicegate.backends.batching.lateness_margin import LatenessMargin
from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import DequeuedBatch, RowQueue
from sluicegate.backends.batching.row import Outcome, Row, RowWaiter
from sluicegate.backends.batching.submission import QueueLimits, SubmissionQueue
from sluicegate.backends.errors import BackendError, DeadlineExceeded
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.telemetry.spans import NO_SPAN
from sluicegate.backends.types import Encoding, FloatArray, OutputKind
from sluicegate.wire.protocol import Report

_ANSWER = np.zeros(1, dtype=np.float32)
# The standard deviation of the logarithm of a batch's time, relative to the predicted time.
_NOISE = 0.05
Ended = Callable[[BackendError | None], None]


@lru_cache
def _encoding(length: int) -> Encoding:
    return Encoding(ids=np.ones(length, dtype=np.int32), type_ids=None, key=b"")


class SimulatedBackend:
    """Serves one model on a device that runs one batch at a time, by the event loop's clock."""

    def __init__(self, name: str, *, cost: CostModel, random: Random) -> None:
        self._loop = asyncio.get_running_loop()
        clock = self._loop.time
        self._cost = cost
        self._random = random
        self._device = Device(slots=1, clock=clock)
        self._share = self._device.share()
        self._queue = RowQueue(limits=BatchLimits(), cost=cost, clock=clock, bulk=self._device.bulk)
        self._meter = Meter(worker_threads=1, cost=cost, clock=clock)
        self._admission = Admission(
            name=name, queue=self._queue, meter=self._meter, margin=LatenessMargin()
        )
        self._submissions = SubmissionQueue(
            limits=QueueLimits(),
            queue=self._queue,
            admission=self._admission,
            cost=cost,
            share=self._share,
            clock=clock,
        )
        self._is_running = False

    def begin(self, length: int, *, scope: str, remaining: float, ended: Ended) -> RowWaiter:
        """Submit an item of `length` tokens.

        `ended` is called once, but never for an item that is withdrawn.

        Raises:
            Overloaded: the item would be late, or the queue is full.
        """
        (reservation,) = self._admission.admit(
            [self._cost.alone(length)], time_left=remaining, flow=(INTERACTIVE, scope)
        )
        deadline = self._loop.time() + remaining
        waiter = RowWaiter(1, deadline=deadline, on_end=lambda _waiter, error: ended(error))

        def settle(row: Row, value: "FloatArray | BackendError") -> None:
            reservation.release()
            row.waiters = []
            if isinstance(value, BackendError):
                waiter.fail(value)
            else:
                waiter.deliver(0, value, computed_tokens=length)

        row = Row(
            encoding=_encoding(length),
            key=(scope, "graph", OutputKind.POOLED, b""),
            deadline=deadline,
            span=NO_SPAN,
            settle=settle,
            request=reservation.request,
        )
        row.join(waiter, 0)
        waiter.pending.append(row)
        try:
            self._submissions.submit([row], reservation)
        except BackendError:
            reservation.release()
            raise
        self._loop.call_soon(self._run)
        return waiter

    def leave(self, waiter: RowWaiter) -> None:
        """Withdraw the rows of a caller that has disconnected."""
        self._submissions.withdraw(waiter.leave())

    def _run(self) -> None:
        while not self._is_running and self._queue.runnable:
            self._device.enter(self._share)
            batch = self._queue.take()
            if batch is None or not batch.rows:
                self._device.leave(self._share, 0.0)
                if batch is not None:
                    self._drop(batch)
                continue
            self._is_running = True
            started = self._meter.begin(batch.work, waiting_since=batch.waiting_since)
            took = batch.seconds * self._random.lognormvariate(0.0, _NOISE)
            self._loop.call_later(took, self._end, batch, started, took)

    def _end(self, batch: DequeuedBatch, started: float, took: float) -> None:
        self._is_running = False
        self._meter.count([row.length for row in batch.rows], took=took)
        self._meter.stop(batch.work)
        self._admission.learn(batch, started=started)
        seconds = batch.seconds * self._queue.slowness
        self._device.leave(self._share, seconds, more=self._queue.runnable > 0)
        self._drop(batch)
        self._submissions.deliver([(row, _ANSWER) for row in batch.rows])
        self._run()

    def _drop(self, batch: DequeuedBatch) -> None:
        late = DeadlineExceeded("the time of the item was over before it could run")
        dropped: list[Outcome] = [(row, late) for row in batch.dropped]
        self._submissions.deliver(dropped)

    def report(self) -> Report:
        """Return the load that the backend reports."""
        statistics = self._meter.statistics()
        return Report(
            queued_rows=self._submissions.rows,
            queued_tokens=self._submissions.tokens,
            rows_per_second=statistics.rows_per_second,
            tokens_per_second=statistics.tokens_per_second,
            queued_seconds=self._admission.queued_seconds(),
            device_busy_share=self._device.busy_share(),
            runs_in_flight=statistics.runs_in_flight,
        )
