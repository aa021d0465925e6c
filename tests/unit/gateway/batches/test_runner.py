"""A process of batches survives whatever becomes of one of them."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from sluicegate.gateway.batches.run import BatchRun
from sluicegate.gateway.batches.runner import BatchRunner
from sluicegate.gateway.ledger.batch_types import BatchState, RequestBatch
from sluicegate.gateway.ledger.batches import BatchStore, LeaseLost
from sluicegate.gateway.ledger.ledger import Ledger
from testing.waiting import eventually
from tests.support.ledgers import open_ledger
from tests.unit.gateway.ledger.test_batches import add_batch

pytestmark = pytest.mark.anyio


class StubRun(BatchRun):
    """Runs until `over` is set, and has then lost its lease."""

    def __init__(self, batch: RequestBatch, over: asyncio.Event) -> None:
        self.batch = batch
        self.halt = asyncio.Event()
        self._over = over

    @override
    async def run(self) -> None:
        await self._over.wait()
        raise LeaseLost(self.batch.id)


class LosingStore(BatchStore):
    """Answers renewals late, and with the leases of nobody."""

    def __init__(self, ledger: Ledger, on_renewal: Callable[[], object]) -> None:
        super().__init__(ledger.batches._store)
        self._on_renewal = on_renewal
        self.go_on = threading.Event()

    @override
    def renew(
        self, holder: str, batches: Sequence[str], *, seconds: float
    ) -> dict[str, BatchState]:
        self._on_renewal()
        assert self.go_on.wait(timeout=10.0)
        return {}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path) as opened:
        yield opened


async def test_a_lease_that_is_lost_while_it_is_renewed_ends_one_run_alone(ledger: Ledger) -> None:
    add_batch(ledger, "a")
    loop, end, stop = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    store = LosingStore(ledger, lambda: loop.call_soon_threadsafe(end.set))

    async def start(batch: RequestBatch) -> BatchRun:
        return StubRun(batch, end)

    runner = BatchRunner(holder="me", batches=store, start=start, most=1, poll=0.01)
    running = asyncio.create_task(runner.run(stop))

    async def is_lost() -> bool:
        return runner.statistics().lost == 1

    async def is_over_or_goes_on() -> bool:
        return running.done() or runner.statistics().begun >= 2

    await eventually(is_lost)
    store.go_on.set()
    await eventually(is_over_or_goes_on)
    stop.set()

    await running
    assert runner.statistics().begun >= 2
