"""A ledger restored from a backup gets what was billed since, each event once."""

import asyncio
import os
import re
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.workers.retention import SegmentRetention
from sluicegate.gateway.workers.stream import BILLING
from testing.postgresql import PostgreSQL, programs
from testing.waiting import until
from tests.support.backups import back_up
from tests.support.events import make_event
from tests.support.ledgers import principals, record, sums
from tests.support.pipeline import Pipeline, running

pytestmark = pytest.mark.anyio
DAY = 86_400.0
KEPT = partial(SegmentRetention, keep=DAY, keep_bytes=1 << 40)


@asynccontextmanager
async def pipeline_of(directory: Path, database: str, url: str) -> AsyncIterator[Pipeline]:
    redis = connect(url, timeout=5.0)
    try:
        with Ledger.create(database) as ledger:
            yield Pipeline(directory, redis, ledger)
    finally:
        await redis.aclose()


def fill(log: EventLog, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.publish(make_event(number))


async def billed(pipeline: Pipeline, count: int) -> None:
    await until(lambda: pipeline.billed() == count, within=30, what=f"{count} are billed")


@pytest.mark.parametrize("state", ["written to", "finished"])
async def test_what_was_shipped_since_the_backup_comes_back(
    tmp_path: Path, database: str, valkey: str, state: str
) -> None:
    log = EventLog(tmp_path / "events", name="w0", segment_bytes=8192)
    async with (
        pipeline_of(tmp_path, database, valkey) as pipeline,
        running(pipeline.shipper(retention=KEPT).run, pipeline.billing().run),
    ):
        fill(log, 0, 300)
        await billed(pipeline, 300)
        restore = await asyncio.to_thread(back_up, database, tmp_path)
        fill(log, 300, 300)
        if state == "finished":
            log.close()
        await billed(pipeline, 600)

    await asyncio.to_thread(restore)

    async with pipeline_of(tmp_path, database, valkey) as pipeline:
        assert pipeline.billed() == 300
        shipper = pipeline.shipper(retention=KEPT)
        async with running(shipper.run, pipeline.billing().run):
            await billed(pipeline, 600)
            if state == "written to":
                fill(log, 600, 10)
                await billed(pipeline, 610)

        assert shipper.statistics().rewinds == 1
        assert sums(pipeline.ledger).lost == 0
        entries = await pipeline.redis.xpending("sg:events", BILLING)
        assert entries["pending"] == 0
    log.close()


async def test_a_shipper_notices_while_it_runs_and_events_keep_coming(
    tmp_path: Path, valkey: str
) -> None:
    """The stream is never empty here, so that only the ledger's mark tells."""
    database = f"sqlite:///{tmp_path / 'ledger.db'}"
    with EventLog(tmp_path / "events", name="w0", segment_bytes=8192) as log:
        async with pipeline_of(tmp_path, database, valkey) as pipeline:
            shipper = pipeline.shipper(retention=KEPT, block_events=5)
            async with running(shipper.run):
                async with running(pipeline.billing().run):
                    fill(log, 0, 300)
                    await billed(pipeline, 300)
                    restore = back_up(database, tmp_path)
                    fill(log, 300, 300)
                    await billed(pipeline, 600)
                    await until(lambda: shipper.statistics().unconsumed == 0, what="it was seen")
                fill(log, 600, 10)
                await until(lambda: shipper.statistics().unconsumed > 0, what="some wait")
                restore()
                await until(lambda: shipper.statistics().rewinds == 1, what="it is noticed")
                async with running(pipeline.billing().run):
                    await billed(pipeline, 610)

            assert pipeline.ledger.recorder.high_water([log.id]) == {log.id: 610}


async def test_what_is_no_longer_kept_is_said_to_be_lost(tmp_path: Path, valkey: str) -> None:
    database = f"sqlite:///{tmp_path / 'ledger.db'}"
    with EventLog(tmp_path / "events", name="w0", segment_bytes=8192) as log:
        async with pipeline_of(tmp_path, database, valkey) as pipeline:
            async with running(pipeline.shipper().run, pipeline.billing().run):
                fill(log, 0, 100)
                await billed(pipeline, 100)
                restore = back_up(database, tmp_path)
                fill(log, 100, 500)
                await billed(pipeline, 600)
                folder = tmp_path / "events" / log.id
                await until(lambda: len(list(folder.glob("*.log"))) == 1, what="the rest is gone")

            restore()

            async with running(pipeline.shipper().run, pipeline.billing().run):
                await until(lambda: pipeline.ledger.recorder.high_water([log.id])[log.id] == 600)

            found = sums(pipeline.ledger)
            assert found.events + found.lost == 600
            assert found.lost > 0


async def test_segments_go_when_their_time_is_over(tmp_path: Path, valkey: str) -> None:
    now = [1_000_000.0]
    database = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with pipeline_of(tmp_path, database, valkey) as pipeline:
        shipper = pipeline.shipper(retention=partial(KEPT, wall=lambda: now[0]))
        async with running(shipper.run, pipeline.billing().run):
            with EventLog(pipeline.events, name="w0", segment_bytes=8192) as log:
                fill(log, 0, 200)
                await billed(pipeline, 200)
            await until(lambda: shipper.statistics().segments_kept == log.statistics().segments)
            assert pipeline.logs() == 1

            now[0] += DAY - 1
            checked = shipper.statistics().segments_kept
            now[0] += 2
            await until(lambda: pipeline.logs() == 0, what="the log is gone")

    assert checked == log.statistics().segments


@pytest.mark.parametrize("reason", ["size", "disk"])
async def test_kept_segments_give_way_the_oldest_first(
    tmp_path: Path, valkey: str, reason: str
) -> None:
    database = f"sqlite:///{tmp_path / 'ledger.db'}"
    missing = [0]
    disk = partial(KEPT, missing_bytes=lambda _: missing[0])
    most = 2 * 8192 if reason == "size" else 1 << 40
    async with pipeline_of(tmp_path, database, valkey) as pipeline:
        shipper = pipeline.shipper(retention=partial(disk, keep_bytes=most))
        with EventLog(pipeline.events, name="w0", segment_bytes=8192) as log:
            async with running(shipper.run, pipeline.billing().run):
                fill(log, 0, 300)
                await billed(pipeline, 300)
                if reason == "disk":
                    # As when it is shortened only after those that follow it were committed.
                    os.utime(pipeline.events / log.id / "00000000.log")
                    missing[0] = 8192
                await until(lambda: shipper.statistics().segments_deleted > 0, what="one is gone")
                missing[0] = 0
                folder = pipeline.events / log.id
                if reason == "size":  # two that are kept, and the one that is written to
                    await until(lambda: len(list(folder.glob("*.log"))) == 3)
                left = sorted(path.name for path in folder.glob("*.log"))

    newest = log.statistics().segments - 1
    assert left[-1] == f"{newest:08d}.log"
    assert "00000000.log" not in left
    assert left == [f"{n:08d}.log" for n in range(newest + 1 - len(left), newest + 1)]


@pytest.mark.system
def test_a_gateway_that_goes_on_knows_its_keys_while_its_ledger_is_restored(
    postgresql: PostgreSQL, tmp_path: Path
) -> None:
    """With PostgreSQL only billing is stopped; restored as the documentation says."""
    database, folder = postgresql.database(), programs()
    assert folder is not None
    url = make_url(database)
    server = ("--host", str(url.query["host"]), "--username", str(url.username))
    schema = str(url.query["options"]).rpartition("=")[2]
    dump = tmp_path / "ledger.dump"
    script = (Path(__file__).parents[2] / "deploy" / "restore.sh").read_text()
    (documented,) = re.findall(r"exec pg_restore [^-]*--[^\n]*\n *(--[^\n]*) --dbname", script)
    with Ledger.create(database) as ledger:
        ledger.accounts.create_tenant("acme")
        ledger.accounts.create_key("acme", key_hash="a hash")
        record(ledger, "w0-1", 1000, [make_event(number) for number in range(1000)])
        subprocess.run(
            [
                *(folder / "pg_dump", *server, "--schema", schema, "--format", "custom"),
                *("--file", dump, str(url.database)),
            ],
            check=True,
        )
        stop, seen = threading.Event(), set()

        def follow() -> None:
            while not stop.is_set():
                try:
                    seen.add(tuple(principals(ledger)))
                except DependencyUnavailable:  # what is known stays
                    continue

        following = threading.Thread(target=follow)
        following.start()
        for _ in range(5):
            restore = (folder / "pg_restore", *server, *documented.split())
            subprocess.run([*restore, "--dbname", str(url.database), dump], check=True)
        stop.set()
        following.join()

    assert seen == {("a hash",)}
