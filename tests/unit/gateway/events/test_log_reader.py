"""The reader of event logs follows a writer, outlives it, and tells a torn record from a whole."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from sluicegate.gateway.events import segment
from sluicegate.gateway.events.committed import CommittedMark
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.events.reader import LogPosition, LogReader, UnreadableLog, list_logs
from sluicegate.gateway.events.syncing import LogSync
from tests.support.events import make_event

SMALL = 4096


class CountingReader(LogReader):
    """Counts how often it reads."""

    scans = 0

    @override
    def _scan(self, limit: int, position: LogPosition | None = None) -> segment.Scan:
        self.scans += 1
        return super()._scan(limit, position)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path, name="w0", segment_bytes=SMALL) as opened:
        yield opened


def fill(log: EventLog, count: int) -> None:
    for number in range(count):
        log.publish(make_event(number))


def read_sequences(reader: LogReader) -> list[int]:
    found: list[int] = []
    while run := reader.read(9):
        found += range(run.first, run.last + 1)
        reader.accept(run)
    return found


def test_a_reader_follows_a_writer(log: EventLog, tmp_path: Path) -> None:
    reader = LogReader(tmp_path / log.id)

    seen = [read_sequences(reader)]
    fill(log, 2)
    seen.append(read_sequences(reader))
    fill(log, 1)
    seen.append(read_sequences(reader))

    assert seen == [[], [1, 2], [3]]
    assert not reader.ended


def test_records_come_again_until_they_are_accepted(log: EventLog, tmp_path: Path) -> None:
    fill(log, 3)
    reader = LogReader(tmp_path / log.id)

    first, second = reader.read(2), reader.read(2)

    assert first == second
    assert first is not None
    assert first.last == 2


def test_a_closed_log_has_an_end(log: EventLog, tmp_path: Path) -> None:
    fill(log, 100)
    log.close()
    reader = LogReader(tmp_path / log.id)

    assert read_sequences(reader) == list(range(1, 101))
    assert reader.ended


def test_seeking_goes_to_the_record_after(log: EventLog, tmp_path: Path) -> None:
    fill(log, 100)
    log.close()
    reader = LogReader(tmp_path / log.id)

    for sequence in (0, 1, 50, 99, 100):
        reader.seek(sequence)
        assert read_sequences(reader) == list(range(sequence + 1, 101))


@pytest.mark.parametrize("committed", range(40, 80))
def test_only_segments_that_are_committed_wholly_are_deleted(
    log: EventLog, tmp_path: Path, committed: int
) -> None:
    fill(log, 100)
    reader = LogReader(tmp_path / log.id)

    reader.seek(100)
    assert reader.committed_segments(0) == []
    assert discard(reader, committed) > 0
    reader.seek(committed)
    assert read_sequences(reader) == list(range(committed + 1, 101))


def test_a_segment_is_not_deleted_before_the_reader_has_left_it(
    log: EventLog, tmp_path: Path
) -> None:
    fill(log, 100)
    reader = LogReader(tmp_path / log.id)
    found: list[int] = []

    while run := reader.read(9):
        found += range(run.first, run.last + 1)
        reader.accept(run)
        discard(reader, 100)

    assert found == list(range(1, 101))


def test_the_segment_being_written_is_never_deleted(log: EventLog, tmp_path: Path) -> None:
    fill(log, 100)
    reader = LogReader(tmp_path / log.id)

    reader.seek(100)
    discard(reader, 100)
    fill(log, 1)

    assert read_sequences(reader) == [101]


def test_an_ended_log_keeps_its_last_segment_until_its_commit(
    log: EventLog, tmp_path: Path
) -> None:
    fill(log, 100)
    log.close()
    reader = LogReader(tmp_path / log.id)
    read_sequences(reader)

    discard(reader, 99)
    before = reader.is_empty
    discard(reader, 100)

    assert (before, reader.is_empty) == (False, True)


def test_a_removed_log_is_gone(log: EventLog, tmp_path: Path) -> None:
    log.close()

    LogReader(tmp_path / log.id).remove()

    assert list_logs(tmp_path) == []


def discard(reader: LogReader, committed: int) -> int:
    """Delete what is committed; return how many segments that were."""
    done = reader.committed_segments(committed)
    for number in done:
        reader.delete(number)
    return len(done)


def cut_short(log: EventLog, directory: Path, *, tail: int) -> None:
    """Leave the log as a crash would: nothing said of an end, the last record's bytes missing."""
    log.close()
    path = max((directory / log.id).glob("*.log"))
    content = bytearray(path.read_bytes())
    end = segment.HEADER.size + segment.scan(bytes(content[segment.HEADER.size :]), limit=999).size
    content[end - tail : end + segment.MARK.size] = bytes(tail + segment.MARK.size)
    path.write_bytes(content)


def test_a_torn_last_record_is_no_record(log: EventLog, tmp_path: Path) -> None:
    fill(log, 5)
    cut_short(log, tmp_path, tail=3)
    reader = LogReader(tmp_path / log.id)

    assert read_sequences(reader) == [1, 2, 3, 4]
    assert reader.ended


def test_a_record_that_is_being_written_is_waited_for(log: EventLog, tmp_path: Path) -> None:
    fill(log, 2)
    path = tmp_path / log.id / segment.file_name(0)
    whole = path.read_bytes()
    end = segment.HEADER.size + segment.scan(whole[segment.HEADER.size :], limit=9).size
    reader = LogReader(tmp_path / log.id)
    with path.open("r+b") as file:
        file.seek(end - 4)
        file.write(bytes(4))

    before = read_sequences(reader)
    with path.open("r+b") as file:
        file.seek(end - 4)
        file.write(whole[end - 4 : end])

    assert before == [1]
    assert not reader.ended
    assert read_sequences(reader) == [2]


def test_behind_a_damaged_segment_the_log_goes_on(log: EventLog, tmp_path: Path) -> None:
    fill(log, 100)
    log.close()
    path = tmp_path / log.id / segment.file_name(1)
    content = bytearray(path.read_bytes())
    content[segment.HEADER.size + 20] ^= 0xFF
    path.write_bytes(content)
    reader = LogReader(tmp_path / log.id)

    found = read_sequences(reader)

    assert 0 < len(found) < 100
    assert found == sorted(found)
    assert found[-1] == 100


def test_a_segment_that_a_crash_emptied_is_passed_over(log: EventLog, tmp_path: Path) -> None:
    fill(log, 100)
    log.close()
    (tmp_path / log.id / segment.file_name(1)).write_bytes(bytes(SMALL))
    reader = LogReader(tmp_path / log.id)

    assert read_sequences(reader)[-1] == 100


def test_a_segment_that_a_crash_emptied_was_not_deleted(log: EventLog, tmp_path: Path) -> None:
    fill(log, 100)
    log.close()
    (tmp_path / log.id / segment.file_name(0)).write_bytes(bytes(SMALL))
    reader = LogReader(tmp_path / log.id)
    first = reader.read(1)
    assert first is not None

    emptied = reader.deleted_up_to()
    reader.delete(0)

    assert (emptied, reader.deleted_up_to()) == (0, first.first - 1)


@pytest.mark.parametrize(
    ("before", "now", "destroyed"),
    [
        pytest.param("one", "other", 5, id="the machine crashed"),
        pytest.param("one", "one", 0, id="only the process died"),
        pytest.param("", "other", 0, id="nobody knows"),
    ],
)
def test_only_a_crash_of_the_machine_destroys_records(
    tmp_path: Path, before: str, now: str, destroyed: int
) -> None:
    sync = LogSync(interval=3600.0, boot=before)
    log = EventLog(tmp_path, name="w0", sync=sync)
    fill(log, 5)
    sync.run_once(is_last=True)
    os.close(log._lock)
    log._lock = -1

    reader = LogReader(tmp_path / log.id, boot=lambda: now)
    read_sequences(reader)

    assert reader.destroyed_up_to() == destroyed
    log.close()
    sync.close()


def test_a_log_of_another_version_is_left_alone(log: EventLog, tmp_path: Path) -> None:
    path = tmp_path / log.id / segment.file_name(0)
    header = segment.HEADER.pack(segment.MAGIC, 99, 0, 1, log.id.encode())
    with path.open("r+b") as file:
        file.write(header)

    with pytest.raises(UnreadableLog):
        LogReader(tmp_path / log.id)


def test_a_folder_without_a_file_of_a_log_is_no_log(log: EventLog, tmp_path: Path) -> None:
    (tmp_path / "kept-by-hand").mkdir()
    (tmp_path / "kept-by-hand" / "notes.txt").touch()

    assert [path.name for path in list_logs(tmp_path)] == [log.id]


def test_a_directory_that_is_not_there_has_no_logs(tmp_path: Path) -> None:
    assert list_logs(tmp_path / "absent") == []


def test_a_log_that_ended_gives_back_what_it_had_reserved(log: EventLog, tmp_path: Path) -> None:
    fill(log, 5)
    log.close()
    reader = LogReader(tmp_path / log.id)
    assert reader.truncate() is None
    read_sequences(reader)

    shorter = reader.truncate()

    assert shorter is not None
    assert shorter.stat().st_size < 1024
    again = LogReader(tmp_path / log.id)
    assert read_sequences(again) == [1, 2, 3, 4, 5]
    assert again.truncate() is None


def test_what_the_ledger_had_is_remembered_beside_the_log(tmp_path: Path) -> None:
    CommittedMark(tmp_path).set(600)
    again = CommittedMark(tmp_path)
    again.set(300)

    assert (again.value, CommittedMark(tmp_path).value) == (300, 300)
    assert CommittedMark(tmp_path / "away").value == 0


def test_a_long_backlog_is_not_read_to_be_counted(log: EventLog, tmp_path: Path) -> None:
    fill(log, 200)
    reader = CountingReader(tmp_path / log.id)
    segments = len(list((tmp_path / log.id).glob("*"))) - 1  # and the lock

    unread = reader.unread_bytes()

    assert segments > 4
    assert (segments - 2) * SMALL < unread <= segments * SMALL
    assert reader.scans == 2
