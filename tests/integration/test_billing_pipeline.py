"""From the log on disk to the ledger: every event once, whatever dies on the way."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from redis.typing import EncodableT, FieldT

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.events import committed, segment
from sluicegate.gateway.events.block import SHIPPED, STREAM
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.workers.ledger_marks import LedgerMarks
from sluicegate.gateway.workers.retention import SegmentRetention
from sluicegate.gateway.workers.shipper import Shipper
from sluicegate.gateway.workers.stream import BILLING, EventStream
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.events import make_event
from tests.support.ledgers import emptied, ledger_url, sums
from tests.support.pipeline import Pipeline, open_pipeline, running

pytestmark = pytest.mark.anyio

# Publishes until it is killed, and says of each event that `publish` has returned.
WRITER = """
import sys
from pathlib import Path
from sluicegate.gateway.events.log import EventLog
from tests.support.events import make_event

log = EventLog(Path(sys.argv[1]), name="w0", segment_bytes=8192)
for number in range(1_000_000):
    log.publish(make_event(number))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""

# A billing worker that commits, says so, and is killed before it can acknowledge.
COMMITTER = """
import asyncio, sys
from pathlib import Path
from tests.support.pipeline import open_pipeline
from sluicegate.gateway.workers.group import GroupReader

class Stuck(GroupReader):
    async def acknowledge(self, entries):
        print("committed", flush=True)
        await asyncio.Event().wait()

async def main():
    async with open_pipeline(Path(sys.argv[1]), sys.argv[2]) as pipeline:
        billing = pipeline.billing(consumer=sys.argv[3])
        billing._group.__class__ = Stuck
        await billing.run(asyncio.Event())

asyncio.run(main())
"""


@pytest.fixture
def server() -> Iterator[Valkey]:
    with Valkey("--appendonly", "yes") as started:
        yield started


@pytest.fixture
async def pipeline(tmp_path: Path, server: Valkey) -> AsyncIterator[Pipeline]:
    async with open_pipeline(tmp_path, server.url) as opened:
        yield opened


class UnreachableLedger:
    """A ledger that the shipper cannot ask."""

    def high_water(self, log_ids: Iterable[str]) -> dict[str, int]:
        """Fail."""
        raise DependencyUnavailable("the ledger cannot be reached")


def fill(log: EventLog, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.publish(make_event(number))


def python(code: str, *arguments: str) -> "subprocess.Popen[str]":
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=root
    )


async def test_events_reach_the_ledger_and_their_log_is_deleted(pipeline: Pipeline) -> None:
    async with running(pipeline.shipper().run, pipeline.billing().run):
        with EventLog(pipeline.events, name="w0", segment_bytes=8192) as log:
            fill(log, 0, 500)
            await until(lambda: pipeline.billed() == 500, what="all are billed")
            assert pipeline.logs() == 1
            fill(log, 500, 500)
        await until(lambda: pipeline.billed() == 1000, what="all are billed")
        await until(lambda: pipeline.logs() == 0, what="the finished log is deleted")
        # The stream is trimmed in a turn of its own, after the log.
        async with asyncio.timeout(60.0):
            while await pipeline.redis.xlen(STREAM) or await pipeline.redis.hgetall(SHIPPED):
                pass


async def test_segments_are_kept_until_the_ledger_has_them(pipeline: Pipeline) -> None:
    shipper = pipeline.shipper()
    async with running(shipper.run):
        with EventLog(pipeline.events, name="w0", segment_bytes=8192) as log:
            fill(log, 0, 500)
        await until(lambda: shipper.statistics().events == 500, what="all are shipped")
        segments = len(list((pipeline.events / log.id).glob("*.log")))
        assert segments == log.statistics().segments

        async with running(pipeline.billing().run):
            await until(lambda: pipeline.logs() == 0, what="the log is deleted")

    assert pipeline.billed() == 500


async def test_a_writer_killed_at_any_moment_loses_nothing_it_published(
    pipeline: Pipeline,
) -> None:
    with python(WRITER, str(pipeline.events)) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(2000)]
        os.kill(writer.pid, signal.SIGKILL)
        said += writer.stdout.readlines()

    published = len([line for line in said if line.endswith("\n")])
    async with running(pipeline.shipper().run, pipeline.billing().run):
        await until(lambda: pipeline.logs() == 0, what="the dead writer's log is deleted")

    # One more may be in the log than was said: it was killed between the two.
    assert published >= 2000
    assert pipeline.billed() in (published, published + 1)


async def test_a_restart_of_redis_loses_and_repeats_nothing(
    pipeline: Pipeline, server: Valkey
) -> None:
    shipper = pipeline.shipper(block_events=10)
    with EventLog(pipeline.events, name="w0") as log:
        async with running(shipper.run, pipeline.billing().run):
            fill(log, 0, 300)
            server.kill()
            fill(log, 300, 300)
            await until(lambda: shipper.statistics().failures > 1, what="Redis is missed")
            server.start()
            fill(log, 600, 300)
            await until(lambda: pipeline.billed() == 900, what="all are billed")

    assert shipper.statistics().lost == 0
    assert pipeline.ledger.recorder.high_water([log.id]) == {log.id: 900}


@pytest.mark.parametrize(
    "forgotten",
    [
        pytest.param([STREAM, SHIPPED], id="everything"),
        pytest.param([STREAM], id="the stream, but not what was shipped"),
    ],
)
async def test_what_redis_forgot_is_shipped_again(pipeline: Pipeline, forgotten: list[str]) -> None:
    shipper = pipeline.shipper(block_events=10)
    with EventLog(pipeline.events, name="w0") as log:
        async with running(shipper.run):
            fill(log, 0, 300)
            await until(lambda: shipper.statistics().events == 300, what="all are shipped")
            await pipeline.redis.delete(*forgotten)
            async with running(pipeline.billing().run):
                await until(lambda: pipeline.billed() == 300, what="all are billed")

    assert shipper.statistics().rewinds >= 1
    assert pipeline.ledger.recorder.high_water([log.id]) == {log.id: 300}


async def test_a_redis_that_comes_back_older_gets_what_it_lacks(
    pipeline: Pipeline, server: Valkey, tmp_path: Path
) -> None:
    shipper = pipeline.shipper(block_events=10)
    saved = server.directory / "appendonlydir"
    with EventLog(pipeline.events, name="w0") as log:
        async with running(shipper.run):
            fill(log, 0, 100)
            await until(lambda: shipper.statistics().events == 100, what="the first are shipped")
            shutil.copytree(saved, tmp_path / "older")
            fill(log, 100, 100)
            await until(lambda: shipper.statistics().events == 200, what="all are shipped")
            server.kill()
            shutil.rmtree(saved)
            shutil.copytree(tmp_path / "older", saved)
            server.start()
            async with running(pipeline.billing().run):
                await until(lambda: pipeline.billed() == 200, what="all are billed")

    assert pipeline.ledger.recorder.high_water([log.id]) == {log.id: 200}


async def test_a_shipper_that_starts_again_ships_only_the_rest(pipeline: Pipeline) -> None:
    with EventLog(pipeline.events, name="w0") as log:
        fill(log, 0, 100)
        async with running(pipeline.shipper().run):
            pass
        fill(log, 100, 50)
        second = pipeline.shipper()
        async with running(second.run, pipeline.billing().run):
            await until(lambda: pipeline.billed() == 150, what="all are billed")

    assert second.statistics().events == 50


@pytest.mark.parametrize("max_blocks", [1000, 1])
async def test_a_shipper_that_stops_ships_what_is_there(
    pipeline: Pipeline, max_blocks: int
) -> None:
    shipper = pipeline.shipper(max_blocks=max_blocks, block_events=7)
    billing = pipeline.billing()
    async with running(shipper.run, billing.run):
        with EventLog(pipeline.events, name="w0") as log:
            fill(log, 0, 50)

    assert shipper.statistics().events == 50
    assert pipeline.billed() == 50


@pytest.mark.parametrize("successor", ["same", "another"])
async def test_a_billing_worker_killed_between_commit_and_acknowledgement_counts_once(
    pipeline: Pipeline, server: Valkey, tmp_path: Path, successor: str
) -> None:
    async with running(pipeline.shipper(block_events=10).run):
        with EventLog(pipeline.events, name="w0") as log:
            fill(log, 0, 100)
        with python(COMMITTER, str(tmp_path), server.url, "same") as killed:
            assert killed.stdout is not None
            assert await asyncio.to_thread(killed.stdout.readline) == "committed\n"
            os.kill(killed.pid, signal.SIGKILL)
        assert 0 < pipeline.billed() <= 100

        billing = pipeline.billing(consumer=successor, claim_after=0.01)
        async with running(billing.run):
            await until(lambda: pipeline.logs() == 0, what="everything is committed")

    assert pipeline.billed() == 100
    assert billing.statistics().duplicates > 0
    assert (await pipeline.redis.xlen(STREAM)) == 0


async def test_a_dead_consumer_fills_the_disk_and_never_redis(pipeline: Pipeline) -> None:
    shipper = pipeline.shipper(max_blocks=5, block_events=10)
    with EventLog(pipeline.events, name="w0") as log:
        async with running(shipper.run):
            fill(log, 0, 500)
            await until(lambda: shipper.statistics().full, what="the stream is full")
            assert await pipeline.redis.xlen(STREAM) == 5
            async with running(pipeline.billing().run):
                await until(lambda: pipeline.billed() == 500, what="all are billed")

    assert await pipeline.redis.xlen(STREAM) <= 5


async def test_a_poisonous_entry_is_set_aside_and_blocks_nothing(pipeline: Pipeline) -> None:
    await pipeline.redis.xgroup_create(STREAM, BILLING, id="0", mkstream=True)
    await pipeline.redis.xadd(STREAM, {"poison": "yes"})
    bad: dict[FieldT, EncodableT] = {"log": "w9-9", "first": 1, "last": 2, "payload": b"\xc1"}
    await pipeline.redis.xadd(STREAM, bad)
    billing = pipeline.billing()

    with EventLog(pipeline.events, name="w0") as log:
        async with running(pipeline.shipper().run, billing.run):
            fill(log, 0, 10)
            await until(lambda: pipeline.billed() == 10, what="the good are billed")

    assert billing.statistics().dead == 2
    assert sums(pipeline.ledger).dead_letters == 2
    assert (await pipeline.redis.xpending(STREAM, BILLING))["pending"] == 0


async def test_a_ledger_that_is_away_is_waited_for(pipeline: Pipeline, tmp_path: Path) -> None:
    billing = pipeline.billing()
    with EventLog(pipeline.events, name="w0") as log:
        async with running(pipeline.shipper().run, billing.run):
            with emptied(ledger_url(tmp_path)):
                fill(log, 0, 50)
                await until(lambda: billing.statistics().failures > 1, what="the ledger is missed")
            await until(lambda: billing.statistics().events == 50, what="all are billed")

    assert pipeline.billed() == 50


async def test_what_could_not_be_committed_waits_in_the_stream(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Even if its log is gone, so that nothing can be shipped again."""
    with EventLog(pipeline.events, name="w0") as log:
        fill(log, 0, 50)
        async with running(pipeline.shipper().run):
            pass
    before, after = pipeline.billing(), pipeline.billing()

    with emptied(ledger_url(tmp_path)):
        async with running(before.run):
            await until(lambda: before.statistics().failures > 0, what="the ledger is missed")
    async with running(after.run):
        await until(lambda: after.statistics().events == 50, what="all are billed")

    assert pipeline.billed() == 50


async def test_two_billing_workers_count_each_event_once(pipeline: Pipeline) -> None:
    workers = [pipeline.billing(consumer=name) for name in ("one", "two")]
    with EventLog(pipeline.events, name="w0") as log, EventLog(pipeline.events, name="w1") as other:
        async with running(pipeline.shipper(block_events=10).run, *(w.run for w in workers)):
            for start in range(0, 1000, 100):
                fill(log, start, 100)
                fill(other, 5000 + start, 100)
            await until(lambda: pipeline.billed() == 2000, what="all are billed")

    assert sum(worker.statistics().events for worker in workers) == 2000
    assert pipeline.ledger.recorder.high_water([log.id, other.id]) == {log.id: 1000, other.id: 1000}
    assert sums(pipeline.ledger).waiting == 0


async def test_records_that_a_crash_destroyed_are_counted_as_lost(pipeline: Pipeline) -> None:
    with EventLog(pipeline.events, name="w0", segment_bytes=8192) as log:
        fill(log, 0, 300)
    segments = sorted((pipeline.events / log.id).glob("*.log"))
    content = segments[1].read_bytes()
    destroyed = len(segment.scan(content[segment.HEADER.size :], limit=300).payloads)
    segments[1].write_bytes(bytes(8192))
    shipper = pipeline.shipper()

    async with running(shipper.run, pipeline.billing().run):
        await until(lambda: pipeline.logs() == 0, what="the log is deleted")

    found = sums(pipeline.ledger)
    assert destroyed > 0
    assert (found.events, found.lost) == (300 - destroyed, destroyed)
    counts = shipper.statistics()
    assert (counts.events, counts.lost, counts.rewinds) == (found.events, destroyed, 0)


@pytest.mark.parametrize("is_mark_kept", [True, False])
async def test_what_was_deleted_as_committed_is_not_lost_when_redis_forgot_and_the_ledger_is_away(
    pipeline: Pipeline, *, is_mark_kept: bool
) -> None:
    with EventLog(pipeline.events, name="w0", segment_bytes=8192) as log:
        fill(log, 0, 300)
        shipper = pipeline.shipper()
        async with running(shipper.run, pipeline.billing().run):
            await until(lambda: shipper.statistics().segments_deleted > 0, what="some are deleted")
        await pipeline.redis.flushall()
        if not is_mark_kept:
            (pipeline.events / log.id / committed.NAME).unlink()
        fill(log, 300, 10)

        alone = Shipper(
            pipeline.events,
            stream=EventStream(pipeline.redis, max_blocks=1000),
            marks=LedgerMarks(UnreachableLedger().high_water),
            retention=SegmentRetention(pipeline.events),
        )
        async with running(alone.run, pipeline.billing().run):
            await until(lambda: pipeline.billed() == 310, what="the new ones are billed")

    assert alone.statistics().lost == 0
    assert sums(pipeline.ledger).lost == 0


async def test_a_log_that_nothing_was_written_to_is_not_kept(pipeline: Pipeline) -> None:
    """A worker that cannot start leaves one each time that it is started again."""
    with EventLog(pipeline.events, name="w0"):
        pass
    kept = partial(SegmentRetention, keep=86_400.0, keep_bytes=1 << 40)

    async with running(pipeline.shipper(retention=kept).run):
        await until(lambda: pipeline.logs() == 0, what="the log is gone")


async def test_a_billing_worker_says_why_the_ledger_is_not_for_it(
    pipeline: Pipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger.create(ledger_url(tmp_path)) as ledger:
        ledger.accounts.tenants()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as later:
        later.execute("INSERT INTO schema_migrations VALUES (99, 99, 1)")
        later.commit()
    with EventLog(pipeline.events, name="w0") as log:
        log.publish(make_event(1))
        billing = pipeline.billing()
        async with running(pipeline.shipper().run, billing.run):
            await until(lambda: billing.statistics().failures > 0, what="it cannot bill")

    reasons = [record.__dict__.get("reason", "") for record in caplog.records]
    assert any("has schema 99" in reason for reason in reasons)


async def test_a_log_that_cannot_be_read_holds_up_no_other(
    pipeline: Pipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that another user made. It is shipped when it can be read."""
    with EventLog(tmp_path, name="w1") as other:
        fill(other, 100, 10)
    bad = pipeline.events / "w1-bad"
    (bad / "00000000.log").mkdir(parents=True)
    with EventLog(pipeline.events, name="w0") as log:
        fill(log, 0, 10)
        async with running(pipeline.shipper().run, pipeline.billing().run):
            await until(lambda: pipeline.billed() == 10)
            (bad / "00000000.log").rmdir()
            (tmp_path / other.id / "00000000.log").rename(bad / "00000000.log")
            await until(lambda: pipeline.billed() == 20)

    said = [record for record in caplog.records if "cannot be read" in record.message]
    assert len(said) == 1
