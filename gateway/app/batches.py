"""Runs the process for batch jobs. It loads a gateway worker only when there is a batch job."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from prometheus_client import CollectorRegistry

from sluicegate.gateway.app.secret import kept_secret
from sluicegate.gateway.batches.answering import LineAnswerer
from sluicegate.gateway.batches.run import BatchBounds, BatchRun
from sluicegate.gateway.batches.runner import BatchRunner, FileRetention
from sluicegate.gateway.batches.webhooks import DeliveryRunner, read_webhooks
from sluicegate.gateway.errors import DependencyUnavailable, NotFound
from sluicegate.gateway.ledger.batch_types import RequestBatch
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.storage.build import build_storage
from sluicegate.gateway.storage.disk import DiskStorage
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.workers.file_lock import FileLock

_LOCK_NAME = "batches.lock"
_HOLDER_NAME = "batches.id"
_log = logging.getLogger(__name__)


async def run_batches(settings: Settings, *, stop: asyncio.Event) -> None:
    """Run batch jobs until `stop` is set.

    Only one process at a time runs the batch jobs of a data directory.
    """
    storage = build_storage(settings)
    with FileLock(settings.data_dir / _LOCK_NAME) as lock, Ledger(settings.ledger) as ledger:
        while not lock.take() and not stop.is_set():
            await pause(stop, 0.5)
        if not lock.held:
            return
        async with AsyncExitStack() as stack:
            holder = await _holder(settings, stop)
            metrics = GatewayMetrics(CollectorRegistry())
            runner = BatchRunner(
                holder=holder,
                batches=ledger.batches,
                start=_starter(stack, settings, ledger, holder),
                most=settings.batches_at_once,
                report=partial(metrics.statistics, "batches"),
            )
            sender = DeliveryRunner(
                deliveries=ledger.deliveries, read=partial(read_webhooks, settings.webhooks)
            )
            retention = FileRetention(
                files=ledger.files,
                batches=ledger.batches,
                storage=storage,
                keep=int(settings.files_keep),
            )
            if isinstance(storage, DiskStorage):
                with contextlib.suppress(NotFound, DependencyUnavailable):
                    await asyncio.to_thread(storage.remove_unfinished)
            async with asyncio.TaskGroup() as group:
                for each in (runner, sender, retention):
                    group.create_task(each.run(stop))


async def _holder(settings: Settings, stop: asyncio.Event) -> str:
    """Return the name of this data directory in leases. While the disk is full, wait."""
    while not stop.is_set():
        try:
            return kept_secret(settings.data_dir / _HOLDER_NAME)
        except OSError as error:
            _log.warning(
                "batch jobs wait, because the data directory cannot be written",
                extra={"reason": error.strerror},
            )
            await pause(stop, 1.0)
    return ""


def _starter(
    stack: AsyncExitStack, settings: Settings, ledger: Ledger, holder: str
) -> Callable[[RequestBatch], Awaitable[BatchRun]]:
    """Return a function that starts a batch job. Its first call opens a gateway worker."""
    answerer: LineAnswerer | None = None
    storage = build_storage(settings)
    bounds = BatchBounds(
        max_lines=settings.batch_max_lines,
        max_line_bytes=settings.batch_max_line_bytes,
        max_output_bytes=settings.batch_max_output_bytes,
        in_flight=settings.batch_in_flight,
        keep_files=int(settings.files_keep),
    )

    async def start(batch: RequestBatch) -> BatchRun:
        nonlocal answerer
        if answerer is None:
            # Imported late, so that the process stays small if there are no batch jobs.
            from sluicegate.gateway.app.batch_lines import open_line_runner  # noqa: PLC0415

            answerer = LineAnswerer(
                runner=await open_line_runner(stack, settings), most=settings.batch_in_flight
            )
        return BatchRun(
            batch,
            holder=holder,
            batches=ledger.batches,
            storage=storage,
            answerer=answerer,
            bounds=bounds,
            results_folder=settings.data_dir,
        )

    return start
