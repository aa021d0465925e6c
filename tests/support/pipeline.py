"""Runs the shipper and billing of one test over a real Valkey and a ledger in a file."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis

from sluicegate.gateway.events.block import STREAM
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.workers.billing import Billing
from sluicegate.gateway.workers.group import GroupReader
from sluicegate.gateway.workers.ledger_marks import LedgerMarks
from sluicegate.gateway.workers.ledger_writer import LedgerWriter
from sluicegate.gateway.workers.request_log import GROUP, RequestLog
from sluicegate.gateway.workers.retention import SegmentRetention
from sluicegate.gateway.workers.rotating_file import RotatingFile
from sluicegate.gateway.workers.shipper import Shipper
from sluicegate.gateway.workers.stream import BILLING, EventStream
from tests.support.ledgers import ledger_url, sums

Work = Callable[[asyncio.Event], Coroutine[object, object, None]]


class Pipeline:
    """Makes the parts between the logs in `directory` and the ledger in it."""

    def __init__(self, directory: Path, redis: Redis, ledger: Ledger) -> None:
        self.directory = directory
        self.events = directory / "events"
        self.redis = redis
        self.ledger = ledger

    def shipper(
        self,
        *,
        max_blocks: int = 1000,
        block_events: int = 1000,
        retention: Callable[[Path], SegmentRetention] = SegmentRetention,
    ) -> Shipper:
        """Make a shipper that looks often."""
        return Shipper(
            self.events,
            stream=EventStream(self.redis, max_blocks=max_blocks),
            marks=LedgerMarks(self.ledger.recorder.high_water),
            retention=retention(self.events),
            block_events=block_events,
            poll=0.005,
        )

    def billing(self, *, consumer: str = "one", claim_after: float = 60.0) -> Billing:
        """Make a billing worker."""
        group = GroupReader(
            self.redis, group=BILLING, consumer=consumer, count=4, claim_after=claim_after
        )
        return Billing(group=group, writer=LedgerWriter(self.ledger), wait=0.02)

    def request_log(self, path: Path) -> RequestLog:
        """Make a worker that writes lines to `path`."""
        group = GroupReader(self.redis, group=GROUP, consumer="one", count=4)
        file = RotatingFile(path, max_bytes=1 << 20, keep=2)
        return RequestLog(group=group, file=file, wait=0.02)

    def billed(self) -> int:
        """Return how many events the ledger has."""
        return sums(self.ledger).events

    def logs(self) -> int:
        """Return how many event logs are on the disk."""
        return len(list(self.events.iterdir()))


@asynccontextmanager
async def open_pipeline(directory: Path, url: str) -> AsyncIterator[Pipeline]:
    """Connect a pipeline to the Valkey at `url`."""
    redis = connect(url, key=STREAM, timeout=60.0)
    try:
        Ledger.create(ledger_url(directory)).close()
        with Ledger(ledger_url(directory)) as ledger:
            yield Pipeline(directory, redis, ledger)
    finally:
        await redis.aclose()


@asynccontextmanager
async def running(*works: Work) -> AsyncIterator[None]:
    """Run `works` meanwhile; at the exit stop them one after the other, each to its end."""
    stops = [asyncio.Event() for _ in works]
    tasks = [asyncio.create_task(_run(work, stop)) for work, stop in zip(works, stops, strict=True)]
    try:
        yield
    finally:
        for stop, task in zip(stops, tasks, strict=True):
            stop.set()
            await task


async def _run(work: Work, stop: asyncio.Event) -> None:
    await work(stop)
