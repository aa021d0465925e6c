"""The log of requests: a line each, whatever is away, and nothing waits for it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.events.block import STREAM
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.workers.request_log import GROUP
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.events import make_event
from tests.support.pipeline import Pipeline, open_pipeline, running

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[Valkey]:
    with Valkey("--appendonly", "yes") as started:
        yield started


@pytest.fixture
async def pipeline(tmp_path: Path, server: Valkey) -> AsyncIterator[Pipeline]:
    async with open_pipeline(tmp_path, server.url) as opened:
        yield opened


def fill(log: EventLog, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.publish(make_event(number))


async def test_the_request_log_has_a_line_per_request(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "requests.log"
    worker = pipeline.request_log(path)
    with EventLog(pipeline.events, name="w0") as log:
        async with running(pipeline.shipper().run, pipeline.billing().run, worker.run):
            fill(log, 0, 100)
            await until(lambda: worker.statistics().lines == 100, what="all are written")

    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [line["id"] for line in lines] == [make_event(n).id for n in range(100)]


async def test_a_request_log_that_cannot_be_written_drops_and_counts(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "requests.log").mkdir()
    worker = pipeline.request_log(tmp_path / "requests.log")
    with EventLog(pipeline.events, name="w0") as log:
        async with running(pipeline.shipper().run, pipeline.billing().run, worker.run):
            fill(log, 0, 100)
            await until(lambda: worker.statistics().dropped == 100, what="all are dropped")
            await until(lambda: pipeline.billed() == 100, what="all are billed")


async def test_a_dead_request_log_does_not_stop_billing(pipeline: Pipeline) -> None:
    await pipeline.redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    shipper = pipeline.shipper(max_blocks=10, block_events=10)
    with EventLog(pipeline.events, name="w0") as log:
        async with running(shipper.run, pipeline.billing().run):
            fill(log, 0, 1000)
            await until(lambda: pipeline.billed() == 1000, what="all are billed")

    assert shipper.statistics().dropped > 0
