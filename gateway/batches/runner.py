"""Runs the open batches of a ledger: takes leases, renews them, and removes old files."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import msgspec

from sluicegate.gateway.batches.run import BatchRun
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.batch_types import BatchState, RequestBatch
from sluicegate.gateway.ledger.batches import BatchStore, LeaseLost
from sluicegate.gateway.ledger.files import FileStore
from sluicegate.gateway.storage.base import FileStorage
from sluicegate.gateway.storage.build import file_object
from sluicegate.gateway.tasks import pause
from sluicegate.wire.metric_declaration import counter, gauge

_LEASE = 30.0
_RENEW_EVERY = 1.0
_SWEEP_EVERY = 60.0
_log = logging.getLogger(__name__)


_RUNNING: Final = gauge("sluicegate_batches", "Batch jobs by `state`: `running`.", "state")
_CHANGES: Final = counter(
    "sluicegate_batch_changes_total",
    "Batch jobs by `change`: `begun`, `ended`, `lost` (taken over by another process).",
    "change",
)
_REMOVED: Final = counter(
    "sluicegate_batch_files_removed_total", "Files deleted because they expired."
)


class RunnerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts batches: those that run, and those begun and ended since the start."""

    running: Annotated[int, _RUNNING("running")]
    begun: Annotated[int, _CHANGES("begun")]
    ended: Annotated[int, _CHANGES("ended")]
    lost: Annotated[int, _CHANGES("lost")]
    files_removed: Annotated[int, _REMOVED]


class BatchRunner:
    """Runs up to `most` batches at a time, and one of each tenant; `start` makes the run of one.

    `holder` is this runner's name in leases: the same after a restart, and no other's meanwhile.
    """

    def __init__(
        self,
        *,
        holder: str,
        batches: BatchStore,
        start: Callable[[RequestBatch], Awaitable[BatchRun]],
        most: int,
        poll: float = 0.5,
        report: Callable[[RunnerStatistics], None] = lambda _: None,
    ) -> None:
        self._holder = holder
        self._batches = batches
        self._start = start
        self._most = most
        self._poll = poll
        self._report = report
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._counts = dict.fromkeys(("begun", "ended", "lost", "files_removed"), 0)

    async def run(self, stop: asyncio.Event) -> None:
        """Run batches until `stop`; those under way then go on at the next start."""
        loop = asyncio.get_running_loop()
        renew_at = 0.0
        is_waiting = False
        try:
            while not stop.is_set():
                try:
                    if self._runs and loop.time() >= renew_at:
                        await self._renew()
                        renew_at = loop.time() + _RENEW_EVERY
                    has_begun = await self._begin()
                    is_waiting = False
                    if has_begun:
                        continue
                except DependencyUnavailable as error:
                    if not is_waiting:
                        _log.warning("batches wait", extra={"reason": error.detail})
                    is_waiting = True
                    await pause(stop, 1.0)
                await pause(stop, self._poll)
        finally:
            tasks = [task for _, task in self._runs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> bool:
        """Begin a batch if one waits; return whether it did."""
        running = [run.batch for run, _ in self._runs.values()]
        batch = await asyncio.to_thread(
            self._batches.claim,
            self._holder,
            seconds=_LEASE,
            running=running,
            most=self._most,
        )
        if batch is None:
            return False
        run = await self._start(batch)
        self._counts["begun"] += 1
        _log.info("a batch begins", extra={"batch": batch.id, "parts": len(batch.parts)})
        task = asyncio.get_running_loop().create_task(self._watch(run))
        self._runs[batch.id] = run, task
        self._report(self.statistics())
        return True

    async def _watch(self, run: BatchRun) -> None:
        try:
            await run.run()
            self._counts["ended"] += 1
        except LeaseLost:
            self._counts["lost"] += 1
            _log.warning("another process has taken over a batch", extra={"batch": run.batch.id})
        except Exception:  # noqa: BLE001 - it is claimed anew, and other batches go on
            _log.exception("a batch was interrupted", extra={"batch": run.batch.id})
            await asyncio.sleep(_RENEW_EVERY)
        finally:
            del self._runs[run.batch.id]
            self._report(self.statistics())

    async def _renew(self) -> None:
        own = list(self._runs)
        held = await asyncio.to_thread(self._batches.renew, self._holder, own, seconds=_LEASE)
        for batch in own:
            if batch not in self._runs:
                continue  # it has ended meanwhile
            run, task = self._runs[batch]
            if batch not in held:
                task.cancel()
            elif held[batch] is BatchState.CANCELLING:
                run.halt.set()

    def statistics(self) -> RunnerStatistics:
        """Return the counts so far."""
        return RunnerStatistics(running=len(self._runs), **self._counts)


class FileRetention:
    """Removes files that have expired, what interrupted uploads left, and batches as old."""

    def __init__(
        self, *, files: FileStore, batches: BatchStore, storage: FileStorage, keep: int
    ) -> None:
        self._files = files
        self._batches = batches
        self._storage = storage
        self._keep = keep

    async def run(self, stop: asyncio.Event) -> None:
        """Remove files until `stop`."""
        while not stop.is_set():
            try:
                await asyncio.to_thread(self.run_once)
            except DependencyUnavailable as error:
                _log.warning("old files are kept for now", extra={"reason": error.detail})
            await pause(stop, _SWEEP_EVERY)

    def run_once(self) -> None:
        """Remove some files: the content first, so that none is forgotten."""
        for file in self._files.expired():
            self._storage.delete(file_object(file))
            self._files.forget(file)
        self._batches.remove_ended(keep=self._keep)
