"""Keeps segments (files) of event logs for a while after the ledger has committed them.

If the ledger is restored from a backup, the events in these segments can be shipped again.
"""

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicegate.gateway.events.committed import CommittedMark
from sluicegate.gateway.events.reader import LogReader

_BLOCK: Final = 512
_RESERVE_BYTES: Final = 1 << 30
_RESERVE_FRACTION: Final = 0.1


class RetainedLog:
    """Holds an open event log, and the number of its last record that the ledger has committed."""

    def __init__(self, directory: Path) -> None:
        self.reader = LogReader(directory)
        self.mark = CommittedMark(directory)


class RetentionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the segments that are present, and the segments deleted since the start."""

    segments: int
    size_bytes: int
    deleted: int


class _Segment(NamedTuple):
    """Describes a committed segment. Segments sort by the time of their commit."""

    committed: float
    log_id: str
    number: int
    size: int
    reader: LogReader


def missing_bytes(directory: Path) -> int:
    """Return how many bytes must be freed on the disk of `directory`.

    If enough space is free, the result is 0 or negative.
    """
    try:
        disk = shutil.disk_usage(directory)
    except OSError:  # if the free space is unknown, it counts as sufficient
        return 0
    return min(_RESERVE_BYTES, int(disk.total * _RESERVE_FRACTION)) - disk.free


class SegmentRetention:
    """Deletes committed segments (files) of event logs, the oldest first.

    A segment is deleted `keep` seconds after its commit. It is deleted earlier in two cases: all
    segments together use more than `keep_bytes`, or the disk has too little free space. A disk has
    too little free space if less than 1 GiB and less than a tenth of the disk is free.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: float = 0.0,
        keep_bytes: int = 0,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - file times are wall-clock times
        missing_bytes: Callable[[Path], int] = missing_bytes,
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._wall = wall
        self._missing_bytes = missing_bytes
        self._deleted = 0
        self._kept: list[_Segment] = []

    def record_commit(self, log: RetainedLog, mark: int) -> None:
        """Record that the ledger has committed `log` up to the record number `mark`.

        The retention time of the newly committed segments starts now.
        """
        if mark != log.mark.value:
            before = set(log.reader.committed_segments(log.mark.value))
            for number in log.reader.committed_segments(mark):
                if number not in before:
                    self._stamp(log.reader.path_of(number))
            log.mark.set(mark)
        with contextlib.suppress(OSError):
            if (truncated := log.reader.truncate()) is not None:
                self._stamp(truncated)

    def _stamp(self, path: Path) -> None:
        """Store the time of the commit as the file's modification time."""
        now = self._wall()
        with contextlib.suppress(OSError):
            os.utime(path, (now, now))

    def expire(self, logs: Iterable[RetainedLog]) -> None:
        """Delete segments whose retention time is over, and segments whose space is needed."""
        self._kept = sorted(segment for log in logs for segment in _segments(log))
        short = self._missing_bytes(self._directory)
        size = sum(segment.size for segment in self._kept)
        now, kept = self._wall(), []
        for segment in self._kept:
            if segment.committed + self._keep <= now or size > self._keep_bytes or short > 0:
                segment.reader.delete(segment.number)
                self._deleted += 1
                size -= segment.size
                short -= segment.size
            else:
                kept.append(segment)
        self._kept = kept

    def statistics(self) -> RetentionStatistics:
        """Return the counts."""
        return RetentionStatistics(
            segments=len(self._kept),
            size_bytes=sum(segment.size for segment in self._kept),
            deleted=self._deleted,
        )


def _segments(log: RetainedLog) -> Iterable[_Segment]:
    """Yield the committed segments of a log.

    The newest segment comes first. No segment has a later time than the segment before it.
    """
    committed = math.inf
    for number in sorted(log.reader.committed_segments(log.mark.value), reverse=True):
        with contextlib.suppress(OSError):
            found = log.reader.path_of(number).stat()
            # A segment that was truncated after its commit has a time that is too late.
            committed = min(committed, found.st_mtime)
            yield _Segment(
                committed=committed,
                log_id=log.reader.id,
                number=number,
                size=found.st_blocks * _BLOCK,
                reader=log.reader,
            )
