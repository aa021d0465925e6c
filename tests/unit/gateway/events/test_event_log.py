"""The event log writes what it is given, or says that it cannot."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.errors import EventLogUnavailable
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.reader import LogReader, list_logs
from sluicegate.gateway.types import RequestEvent
from tests.support.events import make_event

SMALL = 4096


class Disk:
    """Reserves space until it is full."""

    def __init__(self) -> None:
        self.full = False

    def allocate(self, file: int, offset: int, size: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(file, offset, size)


def publish_until_refused(log: EventLog, kept: list[RequestEvent]) -> None:
    for number in range(200):
        log.publish(make_event(number))
        kept.append(make_event(number))


def read_all(reader: LogReader) -> list[RequestEvent]:
    found: list[RequestEvent] = []
    while run := reader.read(7):
        assert run.first == reader.sequence + 1
        found += [msgspec.msgpack.decode(p, type=RequestEvent) for p in run.payloads]
        reader.accept(run)
    return found


def test_events_go_on_in_another_segment_when_one_is_full(tmp_path: Path) -> None:
    events = [make_event(number) for number in range(200)]

    with EventLog(tmp_path, name="w0", segment_bytes=SMALL) as log:
        for event in events:
            log.publish(event)

    assert log.statistics().segments > 3
    assert read_all(LogReader(tmp_path / log.id)) == events


def test_a_full_disk_refuses_the_event_and_loses_none_before_and_after(tmp_path: Path) -> None:
    disk, now = Disk(), [0.0]
    kept: list[RequestEvent] = []

    with EventLog(
        tmp_path, name="w0", segment_bytes=SMALL, allocate=disk.allocate, clock=lambda: now[0]
    ) as log:
        disk.full = True
        with pytest.raises(EventLogUnavailable) as refused:
            publish_until_refused(log, kept)
        unfinished = list((tmp_path / log.id).glob(".*"))
        disk.full = False
        now[0] += 0.1
        log.publish(make_event(999))

    assert unfinished == []
    assert refused.value.retry_after is not None
    assert "No space left" in refused.value.detail
    assert log.statistics().refused == 1
    assert read_all(LogReader(tmp_path / log.id)) == [*kept, make_event(999)]


def test_a_log_that_begins_on_a_full_disk_refuses_events_until_there_is_room(
    tmp_path: Path,
) -> None:
    disk, now = Disk(), [0.0]
    disk.full = True
    folder = tmp_path / "events"

    with EventLog(folder, name="w0", allocate=disk.allocate, clock=lambda: now[0]) as log:
        refusals = []
        for _ in range(3):
            with pytest.raises(EventLogUnavailable, match="No space left") as refused:
                log.reserve_bytes(100)
            refusals.append(refused.value.retry_after)
            now[0] += 0.06
        left, trouble = list_logs(folder), log.refusal_reason()
        disk.full = False
        now[0] += 0.1
        log.publish(make_event(1))
        after = log.refusal_reason()

    assert (refusals, left, "No space left" in trouble, after) == ([1.0] * 3, [], True, "")
    assert read_all(LogReader(folder / log.id)) == [make_event(1)]


def test_a_full_disk_is_tried_again_every_tenth_of_a_second(tmp_path: Path) -> None:
    disk, now = Disk(), [0.0]
    disk.full = True

    with EventLog(tmp_path, name="w0", allocate=disk.allocate, clock=lambda: now[0]) as log:
        disk.full = False
        now[0] = 0.09
        with pytest.raises(EventLogUnavailable):
            log.publish(make_event(1))
        now[0] = 0.1
        log.publish(make_event(2))

    assert read_all(LogReader(tmp_path / log.id)) == [make_event(2)]


def test_who_asks_whether_events_are_kept_has_that_tried_again(tmp_path: Path) -> None:
    disk, now = Disk(), [0.0]
    disk.full = True

    with EventLog(tmp_path, name="w0", allocate=disk.allocate, clock=lambda: now[0]) as log:
        during = log.statistics().writable
        disk.full = False
        now[0] += 0.1

        assert log.refusal_reason() == ""
        assert (during, log.statistics().writable) == (False, True)


# With files of 1 MiB at most, as a full disk would be; then without a limit.
LIMITED = """
import resource, sys
from pathlib import Path
from sluicegate.gateway.errors import EventLogUnavailable
from sluicegate.gateway.events.log import EventLog
from tests.support.events import make_event

now = [0.0]
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
with EventLog(Path(sys.argv[1]), name="w0", clock=lambda: now[0]) as log:
    try:
        log.publish(make_event(1))
    except EventLogUnavailable as error:
        print(error.detail)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    now[0] += 1.0
    log.publish(make_event(2))
"""


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 0, ended.stderr
    assert "space on its disk" in ended.stdout
    (folder,) = list_logs(tmp_path)
    assert read_all(LogReader(folder)) == [make_event(2)]


def test_a_log_that_never_had_room_leaves_nothing(tmp_path: Path) -> None:
    disk, now = Disk(), [0.0]
    disk.full = True
    before = len(list(Path("/proc/self/fd").iterdir()))

    log = EventLog(tmp_path, name="w0", allocate=disk.allocate, clock=lambda: now[0])
    log.close()
    disk.full = False
    now[0] += 1.0
    log.refusal_reason()

    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("kept", [300, 0])
def test_space_set_aside_for_an_event_is_given_back_whole(tmp_path: Path, kept: int) -> None:
    payload = msgspec.msgpack.encode(make_event(1))

    with EventLog(tmp_path, name="w0", segment_bytes=SMALL) as log:
        for _ in range(300):
            log.reserve_bytes(len(payload))
            if kept:
                log.publish_encoded(payload)
            else:
                log.release_bytes(len(payload))

    assert len(read_all(LogReader(tmp_path / log.id))) == kept


def test_an_unusable_directory_is_an_error_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EventLogUnavailable):
        EventLog(tmp_path / "file", name="w0")


def test_an_event_that_no_segment_can_hold_is_refused_alone(tmp_path: Path) -> None:
    with EventLog(tmp_path, name="w0") as log:
        with pytest.raises(EventLogUnavailable):
            log.publish(make_event(1, model="m" * 100_000))
        log.publish(make_event(2))

    assert read_all(LogReader(tmp_path / log.id)) == [make_event(2)]


def test_a_segment_holds_its_blocks_before_anything_is_written(tmp_path: Path) -> None:
    with EventLog(tmp_path, name="w0", segment_bytes=1 << 20) as log:
        segment = next((tmp_path / log.id).glob("*.log"))

        assert segment.stat().st_blocks * 512 >= 1 << 20


def test_two_logs_of_one_name_are_two_logs(tmp_path: Path) -> None:
    with EventLog(tmp_path, name="w0") as one, EventLog(tmp_path, name="w0") as other:
        assert {path.name for path in list_logs(tmp_path)} == {one.id, other.id}


def test_a_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name"):
        EventLog(tmp_path, name="../w0")


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    log = EventLog(tmp_path, name="w0")
    log.close()

    log.close()

    assert read_all(LogReader(tmp_path / log.id)) == []
