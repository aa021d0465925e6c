"""On a full disk nothing is given away, nothing billed is lost, and all is well with the room."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings, environment
from sluicegate.gateway.workers.retention import SegmentRetention
from sluicegate.gateway.workers.rotating_file import RotatingFile
from testing.loopback import no_authorities
from testing.ports import free_port
from testing.raw_http import KEY, Response, post
from testing.stub_backend import StubBackend
from testing.waiting import eventually, until
from tests.support.events import events_in, make_event
from tests.support.pipeline import open_pipeline, running
from tests.support.small_disk import SmallDisk, mounted
from tests.support.worker import RunningWorker, classify, running_worker

pytestmark = [pytest.mark.anyio, pytest.mark.system]
ASK = post("/v1/classify", classify("a"))
READY = post("/health/ready", None, method="GET")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "disk", megabytes=16) as mount:
        yield mount


@pytest.fixture
async def stub(anyio_backend: str) -> AsyncIterator[StubBackend]:
    async with StubBackend() as running_stub:
        yield running_stub


async def ask(worker: RunningWorker, request: bytes = ASK) -> Response:
    async with worker.connect() as connection:
        await connection.send(request)
        return await connection.response()


async def test_a_worker_on_a_full_disk_refuses_hits_too_and_recovers_by_itself(
    tmp_path: Path, disk: SmallDisk, valkey: str, stub: StubBackend
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with running_worker(other, valkey, [stub]) as first:
        assert (await ask(first)).status == 200

    ledger: list[Ledger] = []

    def fill() -> None:
        # As another process of the same gateway would, it keeps the files of SQLite there.
        ledger.append(Ledger.create(f"sqlite:///{disk.path / 'ledger.db'}"))
        ledger[0].accounts.tenants()
        disk.fill()

    async with running_worker(disk.path, valkey, [stub], before=fill) as worker:
        new = post("/v1/classify", classify("b"))
        refused = [await ask(worker, request) for request in (ASK, ASK, new, ASK)]
        unready = await ask(worker, READY)
        kept = events_in(worker.settings.events_dir)
        disk.empty()

        async def answered() -> bool:
            return (await ask(worker)).status == 200

        await eventually(answered)
        await ask(worker)
        ready = await ask(worker, READY)
        after = events_in(worker.settings.events_dir)
    ledger[0].close()

    for answer in refused:
        assert (answer.status, answer.json()["code"]) == (503, "event_log_unavailable")
        assert answer.headers["retry-after"] == "1"
    assert (unready.status, ready.status) == (503, 200)
    assert any("event log" in missing for missing in unready.json()["missing"])
    assert kept == []
    assert [(event.usage.items, event.usage.hit) for event in after] == [(1, 1), (1, 1)]


async def test_a_ledger_on_a_full_disk_is_read_and_billed_to_when_there_is_room(
    disk: SmallDisk, valkey: str
) -> None:
    async with open_pipeline(disk.path, valkey) as pipeline:
        with EventLog(pipeline.events, name="w0", segment_bytes=8192) as log:
            for number in range(200):
                log.publish(make_event(number))
            pipeline.ledger.accounts.create_tenant("acme")
            disk.fill()

            billing = pipeline.billing()
            async with running(pipeline.shipper().run, billing.run):
                await until(lambda: billing.statistics().failures > 0, what="it cannot be written")
                tenants = [tenant.id for tenant in pipeline.ledger.accounts.tenants()]
                disk.empty()
                await until(lambda: pipeline.billed() == 200, within=30, what="all are billed")

    assert tenants == ["acme"]


def test_a_ledger_that_nobody_had_open_is_read_on_a_full_disk(disk: SmallDisk) -> None:
    """SQLite makes the file of its shared memory anew, as the last one who had it deleted it."""
    url = f"sqlite:///{disk.path / 'ledger.db'}"
    with Ledger.create(url) as ledger:
        ledger.accounts.create_tenant("acme")
    disk.fill()

    with Ledger.create(url) as first, Ledger.create(url) as second:
        found = [[tenant.id for tenant in each.accounts.tenants()] for each in (first, second)]
        disk.empty()
        second.accounts.create_tenant("globex")
    disk.fill()
    with Ledger.create(url) as again:
        found.append([tenant.id for tenant in again.accounts.tenants()])

    assert found == [["acme"], ["acme"], ["acme", "globex"]]


def test_a_line_of_the_request_log_is_whole_or_dropped(disk: SmallDisk) -> None:
    file = RotatingFile(disk.path / "requests.log", max_bytes=1 << 20, keep=1)
    file.append(b"first\n")
    disk.fill(leave=16_384)

    with pytest.raises(OSError, match="No space left"):
        file.append(b"dropped\n" * 8192)
    disk.empty()
    file.append(b"last\n")

    assert (disk.path / "requests.log").read_bytes() == b"first\nlast\n"


async def test_kept_segments_make_room_for_new_ones(disk: SmallDisk, valkey: str) -> None:
    """What is written now comes before what a restored ledger might want."""
    kept = partial(SegmentRetention, keep=86_400.0, keep_bytes=1 << 40)
    disk.fill(leave=4 << 20)
    async with open_pipeline(disk.path, valkey) as pipeline:
        shipper = pipeline.shipper(retention=kept)
        async with running(shipper.run, pipeline.billing().run):
            with EventLog(pipeline.events, name="w0", segment_bytes=1 << 16) as log:
                number = 0
                while shipper.statistics().segments_deleted < 5:
                    for _ in range(100):
                        log.publish(make_event(number))
                        number += 1
                    await until(lambda: pipeline.billed() == number, within=30)  # noqa: B023

            assert log.statistics().refused == 0
            assert disk.free_bytes > 0


async def test_a_gateway_starts_on_a_full_disk_says_so_and_recovers_by_itself(
    tmp_path: Path, disk: SmallDisk, valkey: str
) -> None:
    settings = Settings(
        data_dir=disk.path / "data",
        config=tmp_path / "config",
        cache_url=valkey,
        state_url=valkey,
        port=free_port(),
        secret="a secret of a test",
    )
    settings.config.mkdir()
    (settings.config / "gateway.yaml").write_text("models: {}\n")
    settings.data_dir.mkdir()
    with Ledger.create(settings.ledger) as ledger:
        ledger.accounts.create_tenant("acme")
        ledger.accounts.create_key("acme", key_hash=hash_key(KEY))
    disk.fill()

    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sluicegate.gateway", "gateway", "--workers", "1", "--no-admin"),
        env=environment(settings) | {"SLUICEGATE_BATCHES": "false"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        url = f"http://127.0.0.1:{settings.port}"
        async with httpx.AsyncClient(base_url=url, verify=no_authorities()) as client:
            client.headers["authorization"] = f"Bearer {KEY}"

            async def status_of(path: str, *wanted: int) -> bool:
                try:
                    return (await client.get(path)).status_code in wanted
                except httpx.TransportError:
                    return False

            # Keys are read by the room that is kept for that.
            await eventually(lambda: status_of("/v1/models", 200), within=60)
            ready = await client.get("/health/ready")
            disk.empty()
            await eventually(lambda: status_of("/v1/models", 200), within=60)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            gateway.terminate()
        said, _ = await gateway.communicate()

    assert ready.status_code == 503
    assert "No space left" in " ".join(ready.json()["missing"])
    warnings = [line for line in said.decode().splitlines() if "No space left" in line]
    assert len([line for line in warnings if "cannot be written" in line]) == 1
    assert gateway.returncode == 0, said.decode()


async def test_a_first_start_on_a_full_disk_ends_in_one_line(
    tmp_path: Path, disk: SmallDisk
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "gateway.yaml").write_text("models: {}\n")
    settings = Settings(data_dir=disk.path / "data", config=config, port=free_port())
    disk.fill()

    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sluicegate.gateway", "gateway", "--workers", "1", "--no-admin"),
        env=environment(settings) | {"SLUICEGATE_BATCHES": "false"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await gateway.communicate()

    assert gateway.returncode == 1
    assert said.decode().startswith("Error: the disk of the data directory is full")
