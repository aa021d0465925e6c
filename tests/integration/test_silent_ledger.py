"""A ledger that does not answer holds up nobody who can do without."""

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.workers.ledger_marks import LedgerMarks
from sluicegate.gateway.workers.retention import SegmentRetention
from sluicegate.gateway.workers.shipper import Shipper
from sluicegate.gateway.workers.stream import EventStream
from testing.waiting import until
from tests.support.events import make_event
from tests.support.pipeline import open_pipeline, running

pytestmark = pytest.mark.anyio


class SilentLedger:
    """A ledger whose answers are dropped on their way, until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0

    def high_water(self, log_ids: Iterable[str]) -> dict[str, int]:
        """Wait."""
        self.asked += 1
        self.answers.wait()
        return dict.fromkeys(log_ids, 0)


async def test_events_are_shipped_and_billed_while_the_shippers_ledger_is_silent(
    tmp_path: Path, valkey: str
) -> None:
    ledger = SilentLedger()
    async with open_pipeline(tmp_path, valkey) as pipeline:
        shipper = Shipper(
            pipeline.events,
            stream=EventStream(pipeline.redis, max_blocks=1000),
            marks=LedgerMarks(ledger.high_water, timeout=0.05),
            retention=SegmentRetention(pipeline.events),
            poll=0.005,
        )
        try:
            with EventLog(pipeline.events, name="w0") as log:
                async with running(shipper.run, pipeline.billing().run):
                    for number in range(100):
                        log.publish(make_event(number))
                    await until(lambda: pipeline.billed() == 100, what="all are billed")
        finally:
            ledger.answers.set()

    assert ledger.asked == 1, "the next question waits for the answer to the last"
