"""What a power cut takes from an event log is what had not been synced, and is counted as lost."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.syncing import LogSync
from testing.waiting import until
from tests.support.events import make_event
from tests.support.ledgers import sums
from tests.support.pipeline import Pipeline, open_pipeline, running

pytestmark = pytest.mark.anyio
_FORMER_BOOT = "the boot before the power cut"


class Device:
    """Keeps of each file what it held when it was last synced, as a disk does in a power cut."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sync(self, file: int) -> None:
        """Keep a file as it is now; folders are kept with what is in them."""
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.is_file():
            target = self._folder / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    def restore(self, folder: Path) -> None:
        """Make `folder` what it is after the power cut."""
        shutil.rmtree(folder)
        shutil.copytree(self._folder, folder)


class Machine:
    """A gateway machine whose log is synced when a test says so."""

    def __init__(self, pipeline: Pipeline, *, boot: str | None = _FORMER_BOOT) -> None:
        self.pipeline = pipeline
        self._device = Device(pipeline.directory / "device")
        self._sync = LogSync(interval=3600.0, sync=self._device.sync, boot=boot)
        self._log = EventLog(pipeline.events, name="w0", segment_bytes=8192, sync=self._sync)
        self.answered = 0

    def answer(self, requests: int) -> None:
        """Record so many requests, and answer them."""
        for _ in range(requests):
            self.answered += 1
            self._log.publish(make_event(self.answered))

    def sync(self) -> None:
        """Do what the log's thread does twice a second."""
        self._sync.run_once()

    def kill(self) -> None:
        """End the process that has the log, which cannot say that it ends."""
        os.close(self._log._lock)
        self._log._lock = -1

    def cut_power(self) -> None:
        """Leave of the log what is on the device."""
        self.kill()
        self._device.restore(self.pipeline.events)

    async def bill(self) -> tuple[int, int]:
        """Have everything billed that can be; return how many requests are billed, and lost."""
        pipeline = self.pipeline
        async with running(pipeline.shipper().run, pipeline.billing().run):
            await until(lambda: not list(pipeline.events.iterdir()), what="no log is left")
        found = sums(pipeline.ledger)
        return found.events, found.lost


@pytest.fixture
async def machine(tmp_path: Path, valkey: str) -> AsyncIterator[Machine]:
    async with open_pipeline(tmp_path, valkey) as pipeline:
        yield Machine(pipeline)


async def test_a_power_cut_loses_what_came_since_the_last_sync_and_it_is_a_gap(
    machine: Machine,
) -> None:
    for _ in range(3):
        machine.answer(100)
        machine.sync()
    machine.answer(60)

    machine.cut_power()
    billed, lost = await machine.bill()

    assert billed == 300
    # As many as came between the last two syncs: how many there were is known to nobody.
    assert lost == 100


async def test_what_was_shipped_before_a_power_cut_is_not_lost(machine: Machine) -> None:
    machine.answer(100)
    machine.sync()
    machine.answer(30)
    pipeline = machine.pipeline
    async with running(pipeline.shipper().run, pipeline.billing().run):
        await until(lambda: pipeline.billed() == 130, what="events are billed")
    machine.answer(30)

    machine.cut_power()
    billed, lost = await machine.bill()

    assert billed == 130
    assert lost == 70


async def test_what_a_power_cut_took_is_a_gap_though_the_stream_was_full(machine: Machine) -> None:
    for _ in range(2):
        machine.answer(5)
        machine.sync()
    machine.cut_power()
    pipeline = machine.pipeline
    shipper, billing = pipeline.shipper(max_blocks=1), pipeline.billing()

    for _ in range(2):
        await shipper.run_once()
    was_full = shipper.statistics().full
    async with running(billing.run):
        await until(lambda: pipeline.billed() == 10, what="events are billed")
    async with running(shipper.run, pipeline.billing().run):
        await until(lambda: not pipeline.logs(), what="the log is deleted")

    assert was_full
    found = sums(pipeline.ledger)
    assert (found.events, found.lost) == (10, 5)


async def test_a_power_cut_of_an_idle_machine_loses_nothing(machine: Machine) -> None:
    machine.answer(100)
    machine.sync()
    machine.sync()

    machine.cut_power()

    assert await machine.bill() == (100, 0)


async def test_a_process_that_is_killed_loses_nothing_that_was_not_synced(
    tmp_path: Path, valkey: str
) -> None:
    async with open_pipeline(tmp_path, valkey) as pipeline:
        machine = Machine(pipeline, boot=None)
        machine.answer(100)
        machine.sync()
        machine.answer(60)

        machine.kill()

        assert await machine.bill() == (160, 0)
