"""Syncs an event log to the device, in a thread of its own: a power cut loses what is not synced.

The last moment's records are gone then, and with them how many there were. So before each sync the
thread notes in `synced.mark` up to which number records may follow before the next one: as many as
came since the last one. After a crash of the machine, which another boot id tells from the end of a
process, the shipper reports what is missing up to that number as a gap.
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

MARK_NAME: Final = "synced.mark"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_FILES: Final = 64
"""Segments that wait for the device; of more, the oldest are left to the kernel."""
_MARK_BYTES: Final = 128
_LAST_SYNC: Final = 2.0
"""Seconds that the end of a process waits for the device."""
_log = logging.getLogger(__name__)
_encode: Final = msgspec.json.encode


class SyncStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts syncs that failed; `unsynced` is how long the oldest record waits for the device."""

    failures: int = 0
    unsynced: float = 0.0


class SyncedMark(msgspec.Struct, frozen=True, kw_only=True):
    """Says up to which number a log may have had records, and in which boot it was written."""

    expected: int
    boot: str


def boot_id() -> str:
    """Return what is another one after each start of the machine; empty where nobody knows."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read_mark(directory: Path) -> SyncedMark | None:
    """Return the mark of the log in `directory`, `None` where there is none that can be read."""
    try:
        return msgspec.json.decode((directory / MARK_NAME).read_bytes(), type=SyncedMark)
    except (OSError, msgspec.DecodeError):
        return None


class LogSync:
    """Syncs the files of one log at most every `interval` seconds, while there is anything new.

    `follow`, `add` and `close` belong to the log's thread, which never waits for the device but in
    `close`, for two seconds at most.
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
        """Open segments, by their number: descriptors are used again. The present one is last."""
        self._added = 0
        self._directory: Path | None = None
        self._folders: tuple[Path, ...] = ()
        """Those that have a new entry."""
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
        """Sync up to the record whose number `sequence` returns."""
        self._sequence = sequence

    def add(self, file: int, directory: Path) -> None:
        """Sync the segment of a descriptor, which is closed here, from now on."""
        with self._adding:
            self._added += 1
            self._files[self._added] = file
            self._directory = directory
            self._folders = (directory, directory.parent)
            while len(self._files) > _MOST_FILES:
                os.close(self._files.pop(min(self._files)))
        if not self._thread.is_alive() and not self._ending.is_set():
            self._thread.start()

    def close(self) -> None:
        """Sync what is left, and end the thread; where the device hangs, it ends by itself."""
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
        """Sync what was written since the last time; never raises."""
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
            _log.warning("the event log is synced to the device again")

    def _sync_all(self, expected: int) -> None:
        with self._adding:
            files, directory, folders = dict(self._files), self._directory, self._folders
        if directory is None:
            return
        try:
            self._note(directory, expected)
        finally:  # a full disk has room for records, which is reserved, but for no mark
            for file in files.values():
                self._sync(file)
        for folder in folders:
            _sync_folder(folder, self._sync)
        with self._adding:
            last = max(files)
            if last == self._added:
                self._folders = ()
            # What is written later is in the last one, or in segments that came meanwhile.
            for number in self._files.keys() & files.keys() - {last}:
                os.close(self._files.pop(number))

    def _note(self, directory: Path, expected: int) -> None:
        """Write how far records may go, and have it synced before them."""
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
                "the event log is not synced: a power cut would lose what the kernel has not"
                " written; check its disk",
                extra={"reason": error.strerror},
            )


def _sync_folder(folder: Path, sync: Callable[[int], None]) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # file systems of some networks sync no folder
            sync(file)
    finally:
        os.close(file)
