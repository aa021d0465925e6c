"""Reads an event log from its files while it is written, or after its writer has died."""

import fcntl
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from gateway.events import segment
from gateway.events.segment import ScanEnd

_CHUNK_BYTES: Final = 512 * 1024


class UnreadableLog(Exception):
    """A log of another format: it is left alone, for a version that knows it."""


class LogPosition(NamedTuple):
    """A place in a log: an offset in the file of a segment."""

    number: int
    offset: int


class RecordBatch(NamedTuple):
    """Records with consecutive sequence numbers, from `first` on; `end` is the place behind.

    `more` says that behind them something is written already.
    """

    first: int
    payloads: list[bytes]
    end: LogPosition
    more: bool

    @property
    def last(self) -> int:
        """The sequence number of the last record."""
        return self.first + len(self.payloads) - 1

    def behind(self, sequence: int) -> "RecordBatch":
        """Return the run without the records up to `sequence`."""
        known = sequence + 1 - self.first
        if known <= 0:
            return self
        return RecordBatch(sequence + 1, self.payloads[known:], self.end, self.more)


def list_logs(directory: Path) -> list[Path]:
    """Return the folders of the logs in `directory`; what else lies there is somebody else's."""
    try:
        found = [p for p in directory.iterdir() if p.is_dir() and not p.name.startswith(".")]
        return sorted(p for p in found if any(map(_is_of_log, p.iterdir())))
    except FileNotFoundError:
        return []


def _is_of_log(path: Path) -> bool:
    return path.name == segment.LOCK_NAME or segment.file_number(path.name) is not None


class LogReader:
    """Reads runs of records from the log in `directory`, and deletes what it is told to.

    Raises:
        UnreadableLog: the files are not of this format.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._gone = False
        self._shortened = False
        self._firsts: dict[int, int] = {}
        self._place = LogPosition(0, segment.HEADER.size)
        self.sequence = 0
        """The last sequence number that was accepted, or sought."""
        self.ended = False
        """Whether nothing more is coming and everything there is was accepted."""
        self.seek(0)

    @property
    def id(self) -> str:
        """The log's id, which is its folder's name."""
        return self._directory.name

    def read(self, limit: int) -> RecordBatch | None:
        """Return the next records, at most `limit`; the same again until they are accepted."""
        if self.ended:  # as most are that are only kept
            return None
        # Asked first: what is read once the writer is known to be gone is all there will be.
        gone = self._writer_gone()
        while True:
            found = self._scan(limit)
            if found.payloads:
                end = LogPosition(self._place.number, self._place.offset + found.size)
                more = found.stop is not ScanEnd.UNWRITTEN
                run = RecordBatch(found.first, found.payloads, end, more)
                if run.last > self.sequence:
                    return run.behind(self.sequence)
                self._place = end
                continue
            following = self._following() if gone or found.stop is ScanEnd.CONTINUED else None
            if following is None:
                self.ended = gone or found.stop is ScanEnd.FINISHED
                return None
            self._place = LogPosition(following, segment.HEADER.size)

    def accept(self, run: RecordBatch) -> None:
        """Go on behind `run`."""
        self._place = run.end
        self.sequence = run.last

    def seek(self, sequence: int) -> None:
        """Go to the first record after `sequence` that is still on the disk."""
        self._list()
        numbers = sorted(self._firsts)
        before = [n for n in numbers if self._firsts[n] <= sequence + 1]
        number = before[-1] if before else min(numbers, default=0)
        self._place = LogPosition(number, segment.HEADER.size)
        self.sequence = sequence
        self.ended = False

    def committed_segments(self, committed: int) -> list[int]:
        """Return the segments that were read and hold nothing behind `committed`, in order."""
        self._list()
        # The segment of the current place is read to its end, but its mark may not be seen yet.
        numbers = sorted(n for n in self._firsts if n <= self._place.number)
        done = [n for n, m in pairwise(numbers) if self._firsts[m] <= committed + 1]
        if self.ended and self.sequence <= committed:
            done += numbers[-1:]
        return done

    def path_of(self, number: int) -> Path:
        """Return the file of a segment."""
        return self._directory / segment.file_name(number)

    def delete(self, number: int) -> None:
        """Delete a segment."""
        self.path_of(number).unlink(missing_ok=True)
        self._firsts.pop(number, None)

    def shorten(self) -> Path | None:
        """Give back what is reserved behind the end of a log that has ended.

        Returns:
            The segment that is shorter now.
        """
        if not self.ended or self._shortened:
            return None
        self._shortened = True
        end = self._place.offset + segment.MARK.size
        path = self.path_of(self._place.number)
        if not path.exists() or path.stat().st_size <= end:
            return None
        os.truncate(path, end)
        return path

    @property
    def is_empty(self) -> bool:
        """Whether no segment is left."""
        self._list()
        return not self._firsts

    def deleted(self) -> int:
        """Return the sequence number up to which segments were deleted; 0 is nothing."""
        self._list()
        number = min(self._firsts, default=0)
        # A segment that a crash emptied was not deleted: what it held is missing.
        if not number or (self._directory / segment.file_name(number - 1)).exists():
            return 0
        return self._firsts[number] - 1

    def remove(self) -> None:
        """Delete the log."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _scan(self, limit: int) -> segment.Scan:
        """Scan from the current place; what is written last is looked at before all is read."""
        number, offset = self._place
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
        return min((n for n in self._firsts if n > self._place.number), default=None)

    def _list(self) -> None:
        """Learn the first sequence number of each segment there is."""
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
        """Return the sequence number a segment starts with; `None` if a crash emptied it."""
        with path.open("rb") as file:
            header = file.read(segment.HEADER.size)
        if not any(header):
            return None
        if len(header) < segment.HEADER.size:
            raise UnreadableLog(f"`{path.name}` of `{self.id}` is not a whole file")
        magic, version, _, first, _ = segment.HEADER.unpack(header)
        if (magic, version) != (segment.MAGIC, segment.VERSION):
            raise UnreadableLog(f"`{path.name}` of `{self.id}` is of another version")
        return int(first)

    def _writer_gone(self) -> bool:
        """Whether no process holds the log's lock; once gone, a writer never comes back."""
        if self._gone:
            return True
        try:
            file = os.open(self._directory / segment.LOCK_NAME, os.O_RDONLY)
        except FileNotFoundError:
            self._gone = True
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._gone = True
        except BlockingIOError:
            pass
        finally:
            os.close(file)
        return self._gone
