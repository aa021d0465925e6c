"""Assembles the queue and the worker threads that run rows of many callers in batches."""

from collections.abc import Callable
from typing import Self

import msgspec

from sluicegate.backends.batching.admission import Admission
from sluicegate.backends.batching.device import Device
from sluicegate.backends.batching.lateness_margin import LatenessMargin
from sluicegate.backends.batching.loop_wakeup import system_affinity
from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.batching.queue import RowQueue
from sluicegate.backends.batching.queue_delay import QueueDelayPolicy
from sluicegate.backends.batching.runner import BatchRunner
from sluicegate.backends.batching.submission import QueueLimits, SubmissionQueue
from sluicegate.backends.batching.workers import WorkerThreads
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import Tracing
from sluicegate.backends.types import QueueStatistics

# Running work below this is zero, apart from rounding errors.
_NO_WORK = 1e-9


class Batcher:
    """Batches the rows of one executor.

    `submissions` takes rows. Worker threads run them while the context manager is open. Models with
    the same `device` share the time of that device.

    `worker_threads` defaults to the executor's number of threads, and cannot be larger.
    """

    def __init__(
        self,
        *,
        name: str,
        executor: ModelExecutor,
        settings: BackendSettings,
        clock: Callable[[], float],
        tracing: Tracing,
        limits: BatchLimits | None = None,
        worker_threads: int | None = None,
        device: Device | None = None,
    ) -> None:
        threads = min(executor.worker_threads, worker_threads or executor.worker_threads)
        limits = limits or BatchLimits()
        device = device or Device(slots=threads, clock=clock)
        is_on_cores = executor.shares_cores and threads > 1
        queue = RowQueue(
            limits=limits,
            cost=executor.cost,
            clock=clock,
            bulk=device.bulk,
            delay=QueueDelayPolicy(threads=threads) if is_on_cores else None,
        )
        self._share = share = device.share()
        self.name = name
        self.executor, self.limits = executor, limits
        self.provider = executor.provider
        self._meter = Meter(worker_threads=threads, cost=executor.cost, clock=clock)
        self.admission = Admission(
            name=name,
            queue=queue,
            meter=self._meter,
            margin=LatenessMargin(),
            competing=share.competing,
        )
        share.pending = self.admission.pending
        self.submissions = SubmissionQueue(
            limits=QueueLimits(rows=settings.max_queue_rows, tokens=settings.max_queue_tokens),
            queue=queue,
            admission=self.admission,
            cost=executor.cost,
            share=share,
            clock=clock,
        )
        self._runner = runner = BatchRunner(
            settings=settings,
            executor=executor,
            queue=queue,
            meter=self._meter,
            clock=clock,
            tracing=tracing,
            backlog=self.admission.backlog,
        )
        self._workers = WorkerThreads(
            name=name,
            count=threads,
            submissions=self.submissions,
            meter=self._meter,
            share=share,
            runner=runner,
            affinity=system_affinity() if is_on_cores else None,
            shares_rows=is_on_cores,
        )

    async def __aenter__(self) -> Self:
        self._workers.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._workers.stop()

    def discard(self) -> None:
        """Give up the share of the device, if the threads were never started."""
        self._share.close()

    def free(self) -> None:
        """Free the executor of a stopped batcher, to which calls that have ended may still refer.

        Such calls are in reference cycles, which may not be collected for minutes.
        """
        self._runner.free()
        del self.executor

    @property
    def failure(self) -> str | None:
        """Why a worker thread died, or `None`."""
        return self._workers.failure

    @property
    def worker_threads(self) -> int:
        """The maximum number of concurrent batches."""
        return self._workers.count

    @property
    def batches(self) -> int:
        """The number of batches since the start."""
        return self._meter.batches

    @property
    def is_idle(self) -> bool:
        """Whether no row is waiting or running."""
        return not self.submissions.rows and self._meter.running < _NO_WORK

    def statistics(self) -> QueueStatistics:
        """Return the sizes of the queue and the counts since the start."""
        submissions = self.submissions
        return msgspec.structs.replace(
            self._meter.statistics(),
            queued_rows=submissions.rows,
            queued_tokens=submissions.tokens,
            queued_seconds=self.admission.queued_seconds(),
            skipped_rows=submissions.queue.skipped,
            expired_rows=submissions.queue.expired,
            refused_rows=submissions.refused,
        )
