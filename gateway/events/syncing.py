"""Syncs an event log to the disk in a thread. A power cut destroys records that were not synced.

The files alone do not show how many records a power cut has destroyed. Before each sync, the thread
therefore writes an estimate to `synced.mark`: the sequence number that the log will have reached at
the next sync. The file also holds the machine's boot id, which changes with each boot.

If the boot id is different when the log is read, the whole machine has crashed, and not only a
process. The shipper (the process that sends events to Redis) then reports the missing records up to
the estimate as lost.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from sluicegate.wire.folders import sync_folder

MARK_NAME: Final = "synced.mark"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MAX_FILES: Final = 64
"""The most segments that wait for a sync. Older segments are left to the kernel, which decides when
to write them to the disk."""
_MARK_BYTES: Final = 128
_LAST_SYNC: Final = 2.0
"""A process that ends waits at most this many seconds for its last sync."""
_log = logging.getLogger(__name__)
_encode: Final = msgspec.json.encode


class SyncStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts failed syncs.

    `unsynced` is the time in seconds for which the oldest unsynced record has waited.
    """

    failures: int = 0
    unsynced: float = 0.0


class SyncedMark(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the content of `synced.mark`: an estimate, and the machine's boot id.

    The estimate (`expected`) is the last sequence number that the log may have reached before a
    crash.
    """

    expected: int
    boot: str


def boot_id() -> str:
    """Return an id that changes with each boot of the machine, or "" if it is unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read_mark(directory: Path) -> SyncedMark | None:
    """Return the content of `synced.mark` in the log folder `directory`.

    Return `None` if the file cannot be read.
    """
    try:
        return msgspec.json.decode((directory / MARK_NAME).read_bytes(), type=SyncedMark)
    except (OSError, msgspec.DecodeError):
        return None


class LogSync:
    """Syncs the files of one log every `interval` seconds, if there are new records.

    Only the thread that writes the log may call `follow`, `add` and `close`. `follow` and `add` do
    not wait for the disk. `close` waits for at most two seconds.
    """

    def __init__(
        self,
        *,
        interval: float,
        sync: Callable[[int], None] = os.fdatasync,
        boot: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sequence: Callable[[], int] = int
        self._interval = interval
        self._sync = sync
        self._boot = boot_id() if boot is None else boot
        self._clock = clock
        self._files: dict[int, int] = {}
        """The open segments, by a number of their own, because file descriptors are reused. The
        current segment is the last one."""
        self._added = 0
        self._directory: Path | None = None
        self._folders: tuple[Path, ...] = ()
        """The folders that have new entries, which must be synced, too."""
        self._mark = -1
        self._noted = -1
        self._synced = 0
        self._waits_since: float | None = None
        self._failures = 0
        self._is_failing = False
        self._adding = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-log-sync", daemon=True)

    def follow(self, sequence: Callable[[], int]) -> None:
        """Set the function that returns the sequence number of the log's last record."""
        self._sequence = sequence

    def add(self, file: int, directory: Path) -> None:
        """Sync the segment with the file descriptor `file` from now on.

        The segment is in the folder `directory`. This object closes the descriptor.
        """
        with self._adding:
            self._added += 1
            self._files[self._added] = file
            self._directory = directory
            self._folders = (directory, directory.parent)
            while len(self._files) > _MAX_FILES:
                os.close(self._files.pop(min(self._files)))
        if not self._thread.is_alive() and not self._ending.is_set():
            self._thread.start()

    def close(self) -> None:
        """Sync the remaining records and end the thread.

        If the disk does not respond, this call returns before the thread ends.
        """
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_LAST_SYNC)

    def statistics(self) -> SyncStatistics:
        """Return the counts so far."""
        since = self._waits_since
        return SyncStatistics(
            failures=self._failures, unsynced=0.0 if since is None else self._clock() - since
        )

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            self.run_once()
        self.run_once(is_last=True)
        with self._adding:
            files, self._files = self._files, {}
        for file in (*files.values(), *([self._mark] if self._mark >= 0 else [])):
            os.close(file)

    def run_once(self, *, is_last: bool = False) -> None:
        """Sync the records since the last sync. Never raises."""
        sequence = self._sequence()
        came = sequence - self._synced
        expected = sequence if is_last else sequence + came
        if not came and expected == self._noted:
            return
        if self._waits_since is None:
            self._waits_since = self._clock()
        try:
            self._sync_all(expected)
        except OSError as error:
            self._failed(error)
            return
        self._synced, self._noted, self._waits_since = sequence, expected, None
        if self._is_failing:
            self._is_failing = False
            _log.warning("the event log is being synced to the disk again")

    def _sync_all(self, expected: int) -> None:
        with self._adding:
            files, directory, folders = dict(self._files), self._directory, self._folders
        if directory is None:
            return
        try:
            self._note(directory, expected)
        finally:  # on a full disk, there is reserved space for records, but not for the mark
            for file in files.values():
                self._sync(file)
        for folder in folders:
            with contextlib.suppress(OSError):  # some file systems cannot sync a folder
                sync_folder(folder, self._sync)
        with self._adding:
            last = max(files)
            if last == self._added:
                self._folders = ()
            # Later records are in the last segment, or in segments that were added since.
            for number in self._files.keys() & files.keys() - {last}:
                os.close(self._files.pop(number))

    def _note(self, directory: Path, expected: int) -> None:
        """Write and sync the mark. This happens before the records are synced."""
        if self._mark < 0:
            self._mark = os.open(directory / MARK_NAME, os.O_CREAT | os.O_WRONLY, 0o600)
        text = _encode(SyncedMark(expected=expected, boot=self._boot))
        os.pwrite(self._mark, text.ljust(_MARK_BYTES), 0)
        self._sync(self._mark)

    def _failed(self, error: OSError) -> None:
        self._failures += 1
        if not self._is_failing:
            self._is_failing = True
            _log.error(
                "the event log could not be synced; a power cut would lose events; check the disk",
                extra={"reason": error.strerror},
            )
