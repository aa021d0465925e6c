"""Keeps segments of event logs for a while after the ledger has them, as it may be restored."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.events.committed import CommittedMark
from gateway.events.reader import LogReader

_BLOCK: Final = 512
_RESERVE_BYTES: Final = 1 << 30
_RESERVE_SHARE: Final = 0.1


class Disk(NamedTuple):
    """Bytes of a file system."""

    free: int
    size: int


class RetainedLog(NamedTuple):
    """A log, and up to where the ledger has it."""

    reader: LogReader
    mark: CommittedMark


class RetentionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept, and how many segments were deleted since the start."""

    segments: int
    size_bytes: int
    deleted: int


class _Segment(NamedTuple):
    committed: float
    log_id: str
    number: int
    size: int
    reader: LogReader


class SegmentRetention:
    """Deletes committed segments, the oldest first.

    One goes `keep` seconds after it was committed; earlier where all take more than `keep_bytes`,
    or where little of the disk is free (a tenth, and 1 GiB): what is written now comes first.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: float = 0.0,
        keep_bytes: int = 0,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - files keep the time of the day
        disk: Callable[[Path], Disk] | None = None,
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._wall = wall
        self._disk = disk or disk_of
        self._deleted = 0
        self._kept: list[_Segment] = []

    def committed(self, log: RetainedLog, mark: int) -> None:
        """Learn that the ledger has `log` up to `mark`; its segments are kept from now on."""
        if mark != log.mark.value:
            before = set(log.reader.committed_segments(log.mark.value))
            for number in log.reader.committed_segments(mark):
                if number not in before:
                    self._stamp(log.reader.path_of(number))
            log.mark.move(mark)
        with contextlib.suppress(OSError):
            if (shorter := log.reader.shorten()) is not None:
                self._stamp(shorter)

    def _stamp(self, path: Path) -> None:
        """Have the file tell when it was committed."""
        now = self._wall()
        with contextlib.suppress(OSError):
            os.utime(path, (now, now))

    def expire(self, logs: Iterable[RetainedLog]) -> None:
        """Delete what need not, or cannot, be kept."""
        self._kept = sorted(segment for log in logs for segment in _segments(log))
        disk = self._disk(self._directory)
        short = min(_RESERVE_BYTES, int(disk.size * _RESERVE_SHARE)) - disk.free
        size = sum(segment.size for segment in self._kept)
        now, left = self._wall(), []
        for segment in self._kept:
            if segment.committed + self._keep <= now or size > self._keep_bytes or short > 0:
                segment.reader.delete(segment.number)
                self._deleted += 1
                size -= segment.size
                short -= segment.size
            else:
                left.append(segment)
        self._kept = left

    def statistics(self) -> RetentionStatistics:
        """Return what there is."""
        return RetentionStatistics(
            segments=len(self._kept),
            size_bytes=sum(segment.size for segment in self._kept),
            deleted=self._deleted,
        )


def disk_of(directory: Path) -> Disk:
    """Return what is free, to others than root, where `directory` is."""
    try:
        found = os.statvfs(directory)
    except OSError:  # nothing is known, so nothing is short
        return Disk(free=_RESERVE_BYTES, size=0)
    return Disk(free=found.f_bavail * found.f_frsize, size=found.f_blocks * found.f_frsize)


def _segments(log: RetainedLog) -> Iterable[_Segment]:
    """Yield the committed segments of a log; none counts as younger than those that follow it."""
    committed = math.inf
    for number in sorted(log.reader.committed_segments(log.mark.value), reverse=True):
        with contextlib.suppress(OSError):
            found = log.reader.path_of(number).stat()
            # A segment that was shortened after its commit has the later time.
            committed = min(committed, found.st_mtime)
            yield _Segment(
                committed=committed,
                log_id=log.reader.id,
                number=number,
                size=found.st_blocks * _BLOCK,
                reader=log.reader,
            )
