"""A ledger that ends what takes long is billed to in smaller parts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.workers.billing import Billing
from sluicegate.gateway.workers.group import GroupReader, StreamEntry
from sluicegate.gateway.workers.ledger_writer import LedgerWriter, WriteResult
from sluicegate.gateway.workers.stream import BILLING
from testing.waiting import until
from tests.support.events import make_event
from tests.support.pipeline import open_pipeline, running

pytestmark = pytest.mark.anyio


class SlowLedger(LedgerWriter):
    """Ends what has more than one block, as a database does that is slow."""

    refused = 0

    @override
    def write(self, entries: Sequence[StreamEntry]) -> WriteResult:
        if len(entries) > 1:
            self.refused += 1
            raise DependencyUnavailable("a statement took too long")
        return super().write(entries)


async def test_what_takes_a_slow_ledger_too_long_is_billed_in_parts(
    tmp_path: Path, valkey: str
) -> None:
    async with open_pipeline(tmp_path, valkey) as pipeline:
        writer = SlowLedger(pipeline.ledger)
        group = GroupReader(pipeline.redis, group=BILLING, consumer="one", count=8)
        shipper = pipeline.shipper(block_events=10)
        with EventLog(pipeline.events, name="w0") as log:
            for number in range(200):
                log.publish(make_event(number))
            async with running(shipper.run):
                await until(lambda: shipper.statistics().unconsumed == 20, what="all blocks wait")
                async with running(Billing(group=group, writer=writer, wait=0.02).run):
                    await until(lambda: pipeline.billed() == 200)

    assert writer.refused > 0
    assert shipper.statistics().rewinds == 0
