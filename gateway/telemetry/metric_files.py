"""Keeps a process's metrics in the files of `prometheus_client`, for the operators' listener.

`prometheus_client` creates sparse files and maps them into memory. On a full disk, the kernel then
kills a process that writes to such a file. `ReservedDict` therefore reserves the blocks of a file
first. While the disk is full, values stay in memory.

A process locks its files while it lives. The values of ended processes are added up in common
files, whose names contain 0 instead of a process id. A new process adds them up at its start, and
then deletes the files of the ended processes.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Final

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict
from typing_extensions import override

_INITIAL_BYTES: Final = 1 << 16
_USED: Final = struct.Struct("i")
_HEADER_BYTES: Final = 8
_ENTRY_BYTES: Final = 28
"""The most bytes that an entry needs beside its key: lengths, padding, value and time."""
_LOCK_NAME: Final = ".lock"
_DEAD: Final = "0"
_RETRY: Final = 1.0

Allocate = Callable[[int, int, int], None]


class ReservedDict(MmapedDict):
    """Stores values by key in the file `filename`, or in memory while the disk is full.

    Not thread-safe.
    """

    def __init__(
        self,
        filename: str | Path,
        *,
        allocate: Allocate = os.posix_fallocate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The base class would map a sparse file. The next fields are those that its methods use.
        self._f: Any = None  # `Any`: there is no file while the disk is full
        self._m = mmap.mmap(-1, _INITIAL_BYTES)
        self._capacity = _INITIAL_BYTES
        self._used = _HEADER_BYTES
        self._m[: _USED.size] = _USED.pack(self._used)
        self._positions: dict[str, int] = {}
        self._path = Path(filename)
        self._allocate = allocate
        self._clock = clock
        self._retry_at = 0.0
        self.is_on_disk = False
        """Whether the values are in the file, where other processes can read them."""
        self._attach()

    @override
    def write_value(self, key: str, value: float, timestamp: float = 0.0) -> None:
        """Set the value of `key`.

        Switch from memory back to the file if the disk has room again.
        """
        if not self.is_on_disk and self._clock() >= self._retry_at:
            self._attach()
        super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    @override
    def close(self) -> None:
        super().close()  # type: ignore[no-untyped-call]

    @override
    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + _ENTRY_BYTES > self._capacity:
            self._grow()
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self) -> None:
        self._capacity *= 2
        self._move_to(mmap.mmap(-1, self._capacity))
        self.is_on_disk = False
        self._attach()

    def _attach(self) -> None:
        """Switch to the file, if the disk has room for all values."""
        self._retry_at = self._clock() + _RETRY
        try:
            if self._f is None:
                self._f = self._create()
            self._allocate(self._f.fileno(), 0, self._capacity)
            self._move_to(mmap.mmap(self._f.fileno(), self._capacity))
        except OSError:
            return
        self.is_on_disk = True

    def _move_to(self, memory: mmap.mmap) -> None:
        memory[: self._used] = self._m[: self._used]
        self._m.close()
        self._m = memory

    def _create(self) -> FileIO:
        """Create the file under a hidden name, because readers would reject an empty file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        hidden = self._path.with_name(f".{self._path.name}")
        file = FileIO(hidden, "w+", opener=partial(os.open, mode=0o600))
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._allocate(file.fileno(), 0, self._capacity)
            os.pwrite(file.fileno(), self._m[: self._used], 0)
            hidden.rename(self._path)
        except OSError:
            file.close()
            hidden.unlink(missing_ok=True)
            raise
        return file


def keep_metrics_in_files(folder: Path) -> None:
    """Store every metric that is created from now on in files in `folder`.

    `PROMETHEUS_MULTIPROC_DIR` must name the folder. Call this once in a process, before the first
    metric is created. The process must not fork afterwards.
    """
    add_up_dead(folder)
    if getattr(values, "MmapedDict", None) is not MmapedDict:
        raise RuntimeError("this version of `prometheus_client` stores metrics in another way")
    setattr(values, "MmapedDict", ReservedDict)  # noqa: B010 - the library has no other way in
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]


def add_up_dead(folder: Path) -> None:
    """Add the values of ended processes to common files, and delete the old files.

    The names of the common files contain 0 instead of a process id.
    """
    with files_held(folder, exclusive=True):
        for path in sorted(folder.glob("*_*.db")):
            kind, _, process = path.stem.rpartition("_")
            if process == _DEAD or not _is_orphaned(path):
                continue
            try:
                if not kind.startswith("gauge"):
                    _add(path, folder / f"{kind}_{_DEAD}.db")
            except OSError:  # on a full disk, a process that starts later retries
                continue
            path.unlink(missing_ok=True)


def counted_since(folder: Path) -> int | None:
    """Return when the counters in `folder` began to count, in nanoseconds since 1970.

    The result is the time when the lock file was created. When a supervisor starts, it deletes the
    counters and the lock file.
    """
    try:
        # Nothing changes the lock file after its creation.
        return (folder / _LOCK_NAME).stat().st_mtime_ns
    except OSError:
        return None


@contextlib.contextmanager
def files_held(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Lock the folder.

    Reading the files needs a shared lock. Adding up the values of ended processes needs an
    exclusive lock.
    """
    try:
        file = os.open(folder / _LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:  # the disk is full, so there is no lock, and one read may be wrong
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def _add(path: Path, total: Path) -> None:
    sums = _read(total)
    for key, value in _read(path).items():
        sums[key] = sums.get(key, 0.0) + value
    _write(total, sums)


def _write(total: Path, sums: Mapping[str, float]) -> None:
    temporary = total.with_suffix(".new")
    file = ReservedDict(temporary)
    try:
        for key, value in sums.items():
            file.write_value(key, value)
        if not file.is_on_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary.replace(total)
    finally:
        file.close()
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, float]:
    """Return the values in a file, or an empty dictionary if a crash has corrupted the file."""
    try:
        found = MmapedDict.read_all_values_from_file(path)  # type: ignore[no-untyped-call]
        return {key: value for key, value, *_ in found}
    except (FileNotFoundError, RuntimeError, ValueError, struct.error):
        return {}


def _is_orphaned(path: Path) -> bool:
    """Return whether the process that wrote `path` has ended."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
