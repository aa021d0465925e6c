"""Reads an event log from its files.

The log can be read while another process writes to it, and after that process has died.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from sluicegate.gateway.events import segment
from sluicegate.gateway.events.segment import ScanEnd
from sluicegate.gateway.events.syncing import boot_id, read_mark

_CHUNK_BYTES: Final = 512 * 1024
_MAX_COUNTED: Final = 100_000


class UnreadableLog(Exception):
    """A log has a format that this version cannot read."""


class LogPosition(NamedTuple):
    """Identifies a position in a log: a segment and an offset in its file."""

    number: int
    offset: int


class RecordBatch(NamedTuple):
    """Holds records with consecutive sequence numbers. The first record has the number `first`.

    `end` is the position after the records. `more` says whether the log has records after `end`.
    """

    first: int
    payloads: list[bytes]
    end: LogPosition
    more: bool

    @property
    def last(self) -> int:
        """The sequence number of the last record."""
        return self.first + len(self.payloads) - 1

    def after(self, sequence: int) -> "RecordBatch":
        """Return the part of the batch whose sequence numbers are greater than `sequence`."""
        skipped = sequence + 1 - self.first
        if skipped <= 0:
            return self
        return RecordBatch(sequence + 1, self.payloads[skipped:], self.end, self.more)


def list_logs(directory: Path) -> list[Path]:
    """Return the folders of the logs in `directory`. Other entries are ignored."""
    try:
        found = [p for p in directory.iterdir() if p.is_dir() and not p.name.startswith(".")]
        return sorted(p for p in found if any(map(_is_of_log, p.iterdir())))
    except FileNotFoundError:
        return []


def _is_of_log(path: Path) -> bool:
    return path.name == segment.LOCK_NAME or segment.file_number(path.name) is not None


class LogReader:
    """Reads batches of records from the log in `directory`, and deletes the log's segments.

    Raises:
        UnreadableLog: the files have a format that this version cannot read.
    """

    def __init__(self, directory: Path, *, boot: Callable[[], str] = boot_id) -> None:
        self._directory = directory
        self._boot = boot
        self._is_finished = False
        self._is_writer_gone = False
        self._truncated = False
        self._firsts: dict[int, int] = {}
        self._position = LogPosition(0, segment.HEADER.size)
        self.sequence = 0
        """The last sequence number that `accept` or `seek` has moved past."""
        self.ended = False
        """Whether all records were accepted, and no more records will be written."""
        self.seek(0)

    @property
    def id(self) -> str:
        """The log's id, which is its folder's name."""
        return self._directory.name

    def read(self, limit: int) -> RecordBatch | None:
        """Return the next records, at most `limit`, or `None` if there are none now.

        Until `accept` is called with a batch, `read` returns the same records again.
        """
        if self.ended:  # true for most logs that are only kept for a while
            return None
        # This is checked before the scan: once the writer has ended, a scan finds all records.
        is_writer_gone = self._writer_gone()
        while True:
            found = self._scan(limit)
            if found.payloads:
                end = LogPosition(self._position.number, self._position.offset + found.size)
                more = found.stop is not ScanEnd.UNWRITTEN
                batch = RecordBatch(found.first, found.payloads, end, more)
                if batch.last > self.sequence:
                    return batch.after(self.sequence)
                self._position = end
                continue
            following = (
                self._following() if is_writer_gone or found.stop is ScanEnd.CONTINUED else None
            )
            if following is None:
                self._is_finished = found.stop is ScanEnd.FINISHED
                self.ended = is_writer_gone or self._is_finished
                return None
            self._position = LogPosition(following, segment.HEADER.size)

    def accept(self, batch: RecordBatch) -> None:
        """Continue after `batch` at the next `read`."""
        self._position = batch.end
        self.sequence = batch.last

    def destroyed_up_to(self) -> int:
        """Estimate the last sequence number that the log had when its machine crashed.

        The crash has destroyed the records after the last readable record, up to this number. The
        result is 0 if the log has not ended, or if no crash can have destroyed records.
        """
        if not self.ended or self._is_finished:
            return 0
        mark = read_mark(self._directory)
        if mark is None or not mark.boot or mark.boot == self._boot():
            return 0  # the machine has not restarted, so the kernel has all records
        return mark.expected

    def unread_bytes(self) -> int:
        """Return the size in bytes of all records after the present position.

        For a long backlog, the result is an estimate.
        """
        if self.ended:
            return 0
        self._list()
        first, offset = self._position
        later = sorted(n for n in self._firsts if n > first)
        whole = sum(map(self._size_of, later[:-1]))  # scanning each segment would take too long
        last = [LogPosition(number, segment.HEADER.size) for number in later[-1:]]
        return whole + sum(map(self._bytes_after, [LogPosition(first, offset), *last]))

    def _size_of(self, number: int) -> int:
        try:
            return self.path_of(number).stat().st_size
        except FileNotFoundError:
            return 0

    def _bytes_after(self, position: LogPosition) -> int:
        found = self._scan(_MAX_COUNTED, position).size
        if found < _CHUNK_BYTES // 2:
            return found
        return max(found, self._size_of(position.number) - position.offset)

    def seek(self, sequence: int) -> None:
        """Move to the first record on disk whose sequence number is greater than `sequence`."""
        self._list()
        numbers = sorted(self._firsts)
        before = [n for n in numbers if self._firsts[n] <= sequence + 1]
        number = before[-1] if before else min(numbers, default=0)
        self._position = LogPosition(number, segment.HEADER.size)
        self.sequence = sequence
        self.ended = False

    def committed_segments(self, committed: int) -> list[int]:
        """Return the numbers of the segments that were read completely and committed, in order.

        `committed` is the last sequence number that the ledger has committed.
        """
        self._list()
        # The result can include the current segment, because the reader may have read all records
        # of the segment before the segment's mark was written.
        numbers = sorted(n for n in self._firsts if n <= self._position.number)
        done = [n for n, m in pairwise(numbers) if self._firsts[m] <= committed + 1]
        if self.ended and self.sequence <= committed:
            done += numbers[-1:]
        return done

    def path_of(self, number: int) -> Path:
        """Return the path of a segment."""
        return self._directory / segment.file_name(number)

    def delete(self, number: int) -> None:
        """Delete a segment."""
        self.path_of(number).unlink(missing_ok=True)
        self._firsts.pop(number, None)

    def truncate(self) -> Path | None:
        """Free the disk blocks that an ended log has reserved after its last record.

        Returns:
            The segment that was truncated, if there was something to free.
        """
        if not self.ended or self._truncated:
            return None
        self._truncated = True
        end = self._position.offset + segment.MARK.size
        path = self.path_of(self._position.number)
        if not path.exists() or path.stat().st_size <= end:
            return None
        os.truncate(path, end)
        return path

    @property
    def is_empty(self) -> bool:
        """Whether no segment is left."""
        self._list()
        return not self._firsts

    def deleted_up_to(self) -> int:
        """Return the last sequence number in deleted segments, or 0 if no segment was deleted."""
        self._list()
        number = min(self._firsts, default=0)
        # If a crash has emptied a segment, the segment was not deleted. Its records are lost.
        if not number or (self._directory / segment.file_name(number - 1)).exists():
            return 0
        return self._firsts[number] - 1

    def remove(self) -> None:
        """Delete the whole log."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _scan(self, limit: int, position: LogPosition | None = None) -> segment.Scan:
        """Scan the records from `position` on.

        The default is the present position.
        """
        number, offset = position or self._position
        try:
            file = os.open(self._directory / segment.file_name(number), os.O_RDONLY)
        except FileNotFoundError:
            return segment.Scan(0, [], 0, ScanEnd.UNWRITTEN)
        try:
            mark = os.pread(file, segment.MARK.size, offset)
            if not any(mark):
                return segment.Scan(0, [], 0, ScanEnd.UNWRITTEN)
            return segment.scan(os.pread(file, _CHUNK_BYTES, offset), limit=limit)
        finally:
            os.close(file)

    def _following(self) -> int | None:
        self._list()
        return min((n for n in self._firsts if n > self._position.number), default=None)

    def _list(self) -> None:
        """Read the first sequence number of each new segment."""
        try:
            paths = list(self._directory.iterdir())
        except FileNotFoundError:
            paths = []
        for path in paths:
            number = segment.file_number(path.name)
            if number is None or number in self._firsts:
                continue
            first = self._first(path)
            if first is not None:
                self._firsts[number] = first

    def _first(self, path: Path) -> int | None:
        """Return the first sequence number of a segment, or `None` if a crash has emptied it."""
        with path.open("rb") as file:
            header = file.read(segment.HEADER.size)
        if not any(header):
            return None
        if len(header) < segment.HEADER.size:
            raise UnreadableLog(f"`{path.name}` of `{self.id}` is incomplete")
        magic, version, _, first, _ = segment.HEADER.unpack(header)
        if (magic, version) != (segment.MAGIC, segment.VERSION):
            raise UnreadableLog(f"`{path.name}` of `{self.id}` is of another version")
        return int(first)

    def _writer_gone(self) -> bool:
        """Return whether no process holds the log's lock.

        If so, no process will write to the log again.
        """
        if self._is_writer_gone:
            return True
        try:
            file = os.open(self._directory / segment.LOCK_NAME, os.O_RDONLY)
        except FileNotFoundError:
            self._is_writer_gone = True
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._is_writer_gone = True
        except BlockingIOError:
            pass
        finally:
            os.close(file)
        return self._is_writer_gone
