"""Runs batches in worker threads, which take batches from the queue themselves."""

import asyncio
import logging
import threading
from functools import partial

from sluicegate.backends.batching.device import DeviceShare
from sluicegate.backends.batching.loop_wakeup import CoreAffinity, LoopWakeup
from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.batching.queue import DequeuedBatch
from sluicegate.backends.batching.row import Outcome
from sluicegate.backends.batching.runner import BatchRunner
from sluicegate.backends.batching.submission import SubmissionQueue
from sluicegate.backends.errors import ExecutorDied

_log = logging.getLogger(__name__)
_JOIN_TIMEOUT = 5.0


class WorkerThreads:
    """Owns `count` threads, which run batches and send outcomes to the event loop.

    Threads do not wait for the loop between two batches. When the last thread has died, the queue
    is closed and its rows fail; `failure` tells why. If `affinity` is given and all slots of the
    device are in use, the loop is woken on the core of the thread that has just run a batch. With
    `shares_rows`, idle threads share the waiting rows.
    """

    def __init__(
        self,
        *,
        name: str,
        count: int,
        submissions: SubmissionQueue,
        meter: Meter,
        share: DeviceShare,
        runner: BatchRunner,
        affinity: CoreAffinity | None = None,
        shares_rows: bool = False,
    ) -> None:
        self.failure: str | None = None
        self.count = count
        self._name = name
        self._submissions = submissions
        self._queue = submissions.queue
        self._admission = submissions.admission
        self._meter = meter
        self._share = share
        self._runner = runner
        self._affinity = affinity
        self._shares_rows = shares_rows
        self._alive = count
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. They send outcomes to the running event loop."""
        wakeup = LoopWakeup(asyncio.get_running_loop().call_soon_threadsafe, self._affinity)
        for number in range(self.count):
            thread = threading.Thread(
                target=self._run, args=(wakeup,), name=f"{self._name}-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    async def stop(self) -> None:
        """Fail all waiting rows, and wait for each thread to end, up to a timeout."""
        self._submissions.close(ExecutorDied("the backend is stopping"))
        for thread in self._threads:
            # A thread that hangs does not keep the process alive, because it is a daemon.
            await asyncio.to_thread(thread.join, _JOIN_TIMEOUT)
        if not any(thread.is_alive() for thread in self._threads):
            self._share.close()
        # Let the loop deliver outcomes that the threads have already sent.
        await asyncio.sleep(0)

    def _run(self, wakeup: LoopWakeup) -> None:
        ended = 0
        try:
            while self._queue.wait(ended):
                # Take the batch only once a slot is free, from all rows that wait by then.
                with self._share.slot() as use:
                    batch = self._queue.take(idle=self._idle() if self._shares_rows else 0)
                    ended = len(batch.rows) if batch is not None else 0
                    if batch is not None:
                        use.seconds = batch.seconds * self._queue.slowness
                        try:
                            self._run_batch(batch, wakeup, alone=use.alone)
                        except BaseException:  # any error ends the thread, and so its batch
                            self._queue.end_running(ended)
                            raise
                    use.more = self._queue.runnable > 0
        except BaseException as error:  # noqa: BLE001 - the death of a thread must be reported
            wakeup.call(partial(self._on_death, error))

    def _idle(self) -> int:
        """Return how many other threads could run rows now; the caller holds a slot."""
        return min(self._share.free_slots, self._alive - self._share.running)

    def _run_batch(self, batch: DequeuedBatch, wakeup: LoopWakeup, *, alone: bool) -> None:
        outcomes: list[Outcome] = []
        started = self._meter.begin(batch.work, waiting_since=batch.waiting_since)
        try:
            outcomes += self._runner.expire(batch.dropped)
            outcomes += self._runner.run(batch.rows, alone=alone and not batch.more)
        finally:
            # Report an outcome for all rows, even if this thread dies here.
            if len(outcomes) < len(batch.rows) + len(batch.dropped):
                settled = {id(row) for row, _ in outcomes}
                died = ExecutorDied("the executor died while it ran this row")
                unsettled = (r for r in (*batch.dropped, *batch.rows) if id(r) not in settled)
                outcomes += [(row, died) for row in unsettled]
            self._meter.stop(batch.work)
            deliver = partial(self._submissions.deliver, outcomes)
            if self._share.free_slots:
                wakeup.call(deliver)
            else:
                wakeup.call_here(deliver)
        self._admission.learn(batch, started=started)

    def _on_death(self, error: BaseException) -> None:
        self._alive -= 1
        self.failure = f"a worker thread of the executor died with `{type(error).__name__}`"
        _log.error("a worker thread died", exc_info=error, extra={"model": self._name})
        if self._alive == 0:
            self._submissions.close(ExecutorDied(f"the executor of `{self._name}` died"))
