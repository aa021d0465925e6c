"""Writes a worker's events to an append-only log, before the requests are answered.

A write copies the event into a memory-mapped file, without a system call. If the process is killed,
no event is lost. A power cut or a crash of the machine destroys the events that `LogSync` has not
yet synced to the disk.
"""

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Self
from zlib import crc32

import msgspec

from sluicegate.gateway.errors import EventLogUnavailable
from sluicegate.gateway.events import segment
from sluicegate.gateway.events.syncing import LogSync, SyncStatistics
from sluicegate.gateway.types import RequestEvent
from sluicegate.wire.metric_declaration import Aggregation, counter, gauge

# The errors if the disk is full, a disk quota is used up, or a limit on file sizes is reached.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RETRY = 0.1
_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,20}")


_PUBLISHED: Final = counter("sluicegate_events_published_total", "Usage events written to the log.")
_REFUSED: Final = counter(
    "sluicegate_events_refused_total",
    "Usage events refused because the log was full; their requests failed with status 503.",
)
_SEGMENTS: Final = gauge("sluicegate_event_log_segments", "Open segments of event logs.")
_WRITABLE: Final = gauge(
    "sluicegate_event_log_writable",
    "Whether every worker can write its log.",
    over=Aggregation.LEAST,
)
_SYNC_FAILURES: Final = counter(
    "sluicegate_event_log_sync_failures_total", "Failed syncs of event logs to disk."
)
_UNSYNCED: Final = gauge(
    "sluicegate_event_log_unsynced_seconds",
    "Age of the oldest usage event that is not synced to disk; a power cut loses unsynced events.",
    over=Aggregation.MOST,
)


class LogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts recorded and refused events since the log was opened."""

    published: Annotated[int, _PUBLISHED]
    refused: Annotated[int, _REFUSED]
    segments: Annotated[int, _SEGMENTS]
    writable: Annotated[bool, _WRITABLE]
    sync_failures: Annotated[int, _SYNC_FAILURES]
    unsynced: Annotated[float, _UNSYNCED]


class EventLog:
    """Implements `EventPublisher` with files in a new folder.

    The folder is in `directory`. Its name is `name` with a random suffix. Only one thread may use
    the log. `close` marks the log as finished. If the process dies without calling `close`, the
    shipper (the process that sends events to Redis) takes over the folder.

    `allocate` reserves the disk blocks of a file in advance. Otherwise, a write to mapped memory
    would kill the process when the disk is full. While the disk is full, events are refused. `sync`
    makes sure that events are soon synced to the disk. Without `sync`, the kernel decides when to
    write them.

    Raises:
        EventLogUnavailable: the log cannot be created for a reason other than a full disk.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        segment_bytes: int = 4 * 1024 * 1024,
        allocate: Callable[[int, int, int], None] = os.posix_fallocate,
        clock: Callable[[], float] = time.monotonic,
        sync: LogSync | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"`{name}` cannot name an event log: use letters, digits, `._-`")
        self.id = f"{name}-{secrets.token_hex(8)}"
        self._root = directory
        self._directory = directory / self.id
        self._segment_bytes = segment_bytes
        self._allocate = allocate
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(segment.RECORD.size)
        self._sequence = 0
        self._refused = 0
        self._segments = 0
        self._closed = False
        self._reason = ""
        self._retry_at = 0.0
        self._lock = -1
        self._syncing = sync
        if sync is not None:
            sync.follow(lambda: self._sequence)
        self._map = mmap.mmap(-1, 1)  # stands for a segment without space
        self._position = segment_bytes
        # After the last record and the reserved space, there must always be space for a mark.
        self._limit = segment_bytes - segment.MARK.size
        try:
            self._start_segment()
        except OSError as error:
            if error.errno not in _FULL:
                raise EventLogUnavailable(_full(error.strerror)) from error

    def publish(self, event: RequestEvent) -> None:
        """Record `event`; see `EventPublisher`."""
        buffer = self._buffer
        self._encoder.encode_into(event, buffer, segment.RECORD.size)
        size = len(buffer)
        end = self._position + size
        if end > self._limit or size > segment.MAX_PAYLOAD_BYTES:
            end = self._make_room(size)
        sequence = self._sequence + 1
        segment.RECORD.pack_into(buffer, 0, size - segment.RECORD.size, 0, sequence)
        segment.CHECKSUM.pack_into(buffer, segment.CHECKSUM_OFFSET, crc32(buffer))
        self._map[self._position : end] = buffer
        self._position = end
        self._sequence = sequence

    def reserve_bytes(self, size: int) -> None:
        """Reserve space for an event; see `EventPublisher`."""
        size += segment.RECORD.size
        if self._position + size > self._limit or size > segment.MAX_PAYLOAD_BYTES:
            self._make_room(size)
        self._limit -= size

    def release_bytes(self, size: int) -> None:
        """Release reserved space; see `EventPublisher`."""
        self._limit += segment.RECORD.size + size

    def publish_encoded(self, payload: bytes) -> None:
        """Record an event in reserved space; see `EventPublisher`."""
        size = len(payload)
        begin = self._position
        end = begin + segment.RECORD.size + size
        self._limit += segment.RECORD.size + size
        sequence = self._sequence + 1
        checksum = segment.checksum(size, sequence, payload)
        self._map[begin:end] = segment.RECORD.pack(size, checksum, sequence) + payload
        self._position = end
        self._sequence = sequence

    def statistics(self) -> LogStatistics:
        """Return the counts so far."""
        syncs = SyncStatistics() if self._syncing is None else self._syncing.statistics()
        return LogStatistics(
            published=self._sequence,
            refused=self._refused,
            segments=self._segments,
            writable=not self._reason,
            sync_failures=syncs.failures,
            unsynced=syncs.unsynced,
        )

    def refusal_reason(self) -> str:
        """Return why events are refused, or "" if they are accepted.

        If events were refused because of a full disk, first try again to create a file.
        """
        if self._reason and not self._closed and self._clock() >= self._retry_at:
            with contextlib.suppress(OSError):
                self._start_segment()
        return self._reason

    def close(self) -> None:
        """Mark the log as finished and release its lock."""
        if self._closed:
            return
        self._closed = True
        if self._lock >= 0:
            if self._syncing is not None:
                self._syncing.close()
            self._mark(segment.FINISHED)  # from now on, the shipper may delete the log
            os.close(self._lock)
        self._map.close()
        self._limit = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start_segment(self) -> None:
        """Start a new segment. Create the folder first if it does not exist yet.

        Raises:
            OSError: there is no space. Nothing has changed.
        """
        try:
            file, memory = self._open() if self._lock < 0 else self._segment(self._directory)
        except OSError as error:
            self._retry_at = self._clock() + _RETRY
            if not self._reason:
                self._reason = error.strerror or type(error).__name__
                _log.error(
                    "the event log is full and requests are refused; free space on its disk",
                    extra={"reason": error.strerror},
                )
            raise
        if self._segments > 1:
            self._mark(segment.CONTINUED)
        self._map.close()
        self._map = memory
        if self._syncing is None:
            os.close(file)
        else:
            self._syncing.add(file, self._directory)
        self._position = segment.HEADER.size
        if self._reason:
            self._reason = ""
            _log.warning("the event log has space again; requests are no longer refused")

    def _open(self) -> tuple[int, mmap.mmap]:
        """Create the folder.

        The folder has a hidden name until it is locked, so that no reader sees an unlocked folder.
        """
        hidden = self._root / f".{self.id}"
        lock = -1
        try:
            hidden.mkdir(parents=True)
            lock = os.open(hidden / segment.LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = self._segment(hidden)
            hidden.rename(self._directory)
        except OSError:
            self._segments = 0
            if lock >= 0:
                os.close(lock)
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        self._lock = lock
        return first

    def _segment(self, directory: Path) -> tuple[int, mmap.mmap]:
        """Create the next segment: reserve all its blocks, and write its header."""
        number = self._segments
        path = directory / f".{segment.file_name(number)}"
        file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        try:
            self._allocate(file, 0, self._segment_bytes)
            header = segment.HEADER.pack(
                segment.MAGIC, segment.VERSION, number, self._sequence + 1, self.id.encode()
            )
            os.pwrite(file, header, 0)
            memory = mmap.mmap(file, self._segment_bytes)
            path.rename(directory / segment.file_name(number))
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._segments += 1
        return file, memory

    def _make_room(self, size: int) -> int:
        """Start a segment with space for `size` bytes; return the offset where these bytes end."""
        end = segment.HEADER.size + size
        if self._closed:
            raise self._refusal("the event log is closed: the worker is shutting down")
        if end > self._limit or size > segment.MAX_PAYLOAD_BYTES:
            raise self._refusal("an event is too large for the event log")
        if self._reason and self._clock() < self._retry_at:
            raise self._refusal(_full(self._reason), retry_after=1.0)
        try:
            self._start_segment()
        except OSError as error:
            raise self._refusal(_full(error.strerror), retry_after=1.0) from error
        return end

    def _mark(self, mark: int) -> None:
        segment.MARK.pack_into(self._map, self._position, mark)

    def _refusal(self, detail: str, *, retry_after: float | None = None) -> EventLogUnavailable:
        self._refused += 1
        return EventLogUnavailable(detail, retry_after=retry_after)


def _full(reason: str | None) -> str:
    return (
        f"the event log cannot be written ({reason}); retry later, and ask the operator to free"
        " space on its disk"
    )
