"""An event log reaches the device soon after it is written, and nobody waits for the device."""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.reader import LogReader
from sluicegate.gateway.events.syncing import MARK_NAME, LogSync, read_mark
from testing.waiting import wait_until
from tests.support.events import make_event

BOOT = "this boot"


class Device:
    """Syncs files; counts, fails or hangs as a test says."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.error: int | None = None
        self.failing = ""
        """The name of the only file that fails; empty: all do."""
        self.hanging = ""
        """The name of the only file that hangs; empty: all do."""
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def sync(self, file: int) -> None:
        name = Path(f"/proc/self/fd/{file}").readlink().name
        if self.hanging in ("", name):
            self.asked.set()
            assert self.answers.wait(60)
        if self.error is not None and self.failing in ("", name):
            raise OSError(self.error, os.strerror(self.error))
        self.synced.append(name)


class Written:
    """A log of which a test says how many records it has."""

    def __init__(self, folder: Path, device: Device) -> None:
        self.records = 0
        self.now = 0.0
        self.folder = folder
        self.sync = LogSync(interval=3600.0, sync=device.sync, boot=BOOT, clock=lambda: self.now)
        self.sync.follow(lambda: self.records)

    def begin(self, name: str) -> None:
        """Begin a segment."""
        self.sync.add(os.open(self.folder / name, os.O_CREAT | os.O_RDWR), self.folder)

    def open_segments(self) -> int:
        """Return how many segments this process has open."""
        files = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return sum(each.readlink().match(f"{self.folder}/*.log") for each in files)

    def expected(self) -> int:
        """Return up to which number records may have been written."""
        mark = read_mark(self.folder)
        assert mark is not None
        assert mark.boot == BOOT
        return mark.expected


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def log(tmp_path: Path, device: Device) -> Iterator[Written]:
    (tmp_path / "log").mkdir()
    made = Written(tmp_path / "log", device)
    made.begin("0.log")
    yield made
    made.sync.close()


def test_what_came_is_synced_with_every_segment_that_it_may_be_in(
    log: Written, device: Device
) -> None:
    log.records = 10
    log.begin("1.log")
    log.sync.run_once()
    first, device.synced = device.synced, []
    log.records = 15
    log.sync.run_once()

    assert first == [MARK_NAME, "0.log", "1.log", "log", log.folder.parent.name]
    assert device.synced == [MARK_NAME, "1.log"]


def test_a_folder_that_cannot_be_synced_is_no_failure(log: Written, device: Device) -> None:
    device.error, device.failing = errno.EACCES, log.folder.name
    log.records = 10
    log.sync.run_once()

    assert log.sync.statistics().failures == 0


def test_no_more_segments_stay_open_than_wait_for_a_sync(log: Written) -> None:
    for number in range(1, 100):
        log.begin(f"{number}.log")
    unsynced = log.open_segments()
    log.records = 100

    log.sync.run_once()

    assert (unsynced, log.open_segments()) == (64, 1)


def test_nothing_is_synced_while_nothing_comes(log: Written, device: Device) -> None:
    log.records = 10
    log.sync.run_once()
    log.sync.run_once()
    device.synced = []

    log.sync.run_once()

    assert device.synced == []
    assert log.expected() == 10


def test_as_many_records_are_expected_as_came_since_the_last_sync(log: Written) -> None:
    log.records = 10
    log.sync.run_once()
    at_first = log.expected()
    log.records = 14
    log.sync.run_once()

    assert at_first == 20
    assert log.expected() == 18


def test_a_device_that_fails_is_named_once_and_counted(
    log: Written, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.error = errno.EIO
    log.records = 1
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.sync.run_once()
            log.now += 2.0
        while_failing = log.sync.statistics()
        device.error = None
        log.sync.run_once()

    assert (while_failing.failures, while_failing.unsynced) == (3, 6.0)
    assert log.sync.statistics().unsynced == 0.0
    assert len(caplog.records) == 2


def test_a_mark_that_has_no_room_keeps_no_record_from_the_device(
    log: Written, device: Device
) -> None:
    device.error, device.failing = errno.ENOSPC, MARK_NAME
    log.records = 1

    log.sync.run_once()

    assert "0.log" in device.synced
    assert log.sync.statistics().failures == 1


def test_a_segment_whose_descriptor_was_used_before_is_synced(log: Written, device: Device) -> None:
    """More segments came while the device hung than are kept open: descriptors are used again."""
    device.answers.clear()
    device.hanging = "1.log"
    log.begin("1.log")
    log.records = 1
    hanging = threading.Thread(target=log.sync.run_once)
    hanging.start()
    assert device.asked.wait(60)
    for number in range(2, 66):
        log.begin(f"{number}.log")
    device.answers.set()
    hanging.join()
    device.synced = []
    log.records = 2

    log.sync.run_once()

    assert "65.log" in device.synced


def test_a_log_that_is_shown_as_finished_has_been_synced(tmp_path: Path) -> None:
    """From then on the shipper may remove its folder."""
    ended: list[bool] = []

    def sync(_: int) -> None:
        reader = LogReader(folder)
        while (batch := reader.read(100)) is not None:
            reader.accept(batch)
        ended.append(reader.ended)

    log = EventLog(tmp_path, name="w0", sync=LogSync(interval=3600.0, sync=sync))
    folder = tmp_path / log.id
    log.publish(make_event(1))
    log.close()

    assert ended
    assert not any(ended)


def test_a_device_that_hangs_holds_up_no_event(tmp_path: Path, device: Device) -> None:
    device.answers.clear()
    sync = LogSync(interval=0.05, sync=device.sync)
    with EventLog(tmp_path, name="w0", segment_bytes=4096, sync=sync) as log:
        for number in range(500):
            log.publish(make_event(number))
        written = log.statistics().published
        device.answers.set()

    assert written == 500
    assert (tmp_path / log.id / MARK_NAME).exists()


def test_a_log_is_synced_by_itself_and_to_its_end_when_it_is_closed(tmp_path: Path) -> None:
    with EventLog(tmp_path, name="w0", sync=LogSync(interval=0.05)) as log:
        folder = tmp_path / log.id
        log.publish(make_event(1))
        wait_until((folder / MARK_NAME).exists, what="a sync")
        for number in range(2, 30):
            log.publish(make_event(number))

    mark = read_mark(folder)
    assert mark is not None
    assert mark.expected == 29
    reader = LogReader(folder, boot=lambda: "another boot")
    while (batch := reader.read(100)) is not None:
        reader.accept(batch)
    assert reader.destroyed_up_to() == 0
