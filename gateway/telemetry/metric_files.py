"""Stores a process's metrics in files that the operators' listener reads.

The files have the format of the library `prometheus_client`. The library itself creates sparse
files and maps them into memory. On a full disk, the kernel then kills a process that writes to such
a file. This module therefore reserves the blocks of a file first. While the disk is full, values
stay in memory.

A process locks its files while it lives. The values of ended processes are added up in common
files, whose names contain 0 instead of a process id. A new process adds them up at its start, and
then deletes the files of the ended processes. Series that this version does not declare are
dropped.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict, mmap_key

_INITIAL_BYTES: Final = 1 << 16
_USED: Final = struct.Struct("i")
_LENGTH: Final = struct.Struct("i")
_VALUE: Final = struct.Struct("dd")
_HEADER_BYTES: Final = 8
_LOCK_NAME: Final = ".lock"
_DEAD: Final = "0"
_RETRY: Final = 1.0

Allocate = Callable[[int, int, int], None]
IsKept = Callable[[str], bool]
"""Returns whether the value of a key should be kept."""


class MetricFile:
    """Stores values by key in the file at `path`, or in memory while the disk is full.

    Not thread-safe.
    """

    def __init__(
        self,
        path: Path,
        *,
        allocate: Allocate = os.posix_fallocate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._allocate = allocate
        self._clock = clock
        self._buffer: bytearray | mmap.mmap = bytearray(_INITIAL_BYTES)
        self._used = _HEADER_BYTES
        self._positions: dict[str, int] = {}
        self._file = -1
        self._retry_at = 0.0
        self._save_used()
        self._attach()

    @property
    def is_on_disk(self) -> bool:
        """Whether the values are in the file, where other processes can read them."""
        return isinstance(self._buffer, mmap.mmap)

    def read(self, key: str) -> float:
        """Return the value of `key`. A new key has the value 0."""
        position = self._position(key)  # called first, because it may replace the buffer
        value, _ = _VALUE.unpack_from(self._buffer, position)
        return float(value)

    def write(self, key: str, value: float, timestamp: float = 0.0) -> None:
        """Set the value of `key`.

        Switch from memory back to the file if the disk has room again.
        """
        position = self._position(key)
        if not self.is_on_disk and self._clock() >= self._retry_at:
            self._attach()
        # A single assignment writes the whole value, so that no reader sees half of it.
        self._buffer[position : position + _VALUE.size] = _VALUE.pack(value, timestamp)

    def close(self) -> None:
        """Close the file."""
        if isinstance(self._buffer, mmap.mmap):
            self._buffer.close()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _position(self, key: str) -> int:
        position = self._positions.get(key)
        if position is None:
            entry = _entry(key, 0.0)
            begin, end = self._used, self._used + len(entry)
            if end > len(self._buffer):
                self._grow()
            self._buffer[begin:end] = entry
            self._used = end
            self._save_used()
            position = self._positions[key] = end - _VALUE.size
        return position

    def _grow(self) -> None:
        content = bytes(self._buffer[: self._used])
        size = 2 * len(self._buffer)
        if isinstance(self._buffer, mmap.mmap):
            self._buffer.close()
        self._buffer = bytearray(size)
        self._buffer[: len(content)] = content
        self._attach()

    def _attach(self) -> None:
        """Switch to the file, if the disk has room for the whole buffer."""
        self._retry_at = self._clock() + _RETRY
        try:
            if self._file < 0:
                self._create()
            self._allocate(self._file, 0, len(self._buffer))
            memory = mmap.mmap(self._file, len(self._buffer))
        except OSError:
            return
        memory[: self._used] = bytes(self._buffer[: self._used])
        self._buffer = memory

    def _create(self) -> None:
        """Create the file under a hidden name, because readers would reject an empty file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        hidden = self._path.with_name(f".{self._path.name}")
        file = os.open(hidden, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._allocate(file, 0, len(self._buffer))
            os.pwrite(file, self._buffer[: self._used], 0)
            hidden.rename(self._path)
        except OSError:
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise
        self._file = file

    def _save_used(self) -> None:
        self._buffer[: _USED.size] = _USED.pack(self._used)


class MetricFiles:
    """Holds the metric files of this process in `folder`.

    There is one file for each kind of metric. One lock protects all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.lock = Lock()
        self._folder = folder
        self._files: dict[str, MetricFile] = {}

    def of(self, kind: str) -> MetricFile:
        """Return the file for a kind of metrics, such as `counter` or `gauge_livesum`."""
        if kind not in self._files:
            self._files[kind] = MetricFile(self._folder / f"{kind}_{os.getpid()}.db")
        return self._files[kind]


class FileValue:
    """Holds a metric's value. Implements the interface that `prometheus_client` requires."""

    _multiprocess = True

    def __init__(
        self,
        files: MetricFiles,
        typ: str,
        metric_name: str,
        name: str,
        labelnames: list[str],
        labelvalues: list[str],
        help_text: str,
        multiprocess_mode: str = "",
        **_: object,
    ) -> None:
        self._lock = files.lock
        self._key = mmap_key(metric_name, name, labelnames, labelvalues, help_text)
        with self._lock:
            self._file = files.of(f"gauge_{multiprocess_mode}" if typ == "gauge" else typ)
            self._file.read(self._key)

    def inc(self, amount: float) -> None:
        """Add `amount`."""
        with self._lock:
            self._file.write(self._key, self._file.read(self._key) + amount)

    def set(self, value: float, timestamp: float | None = None) -> None:
        """Set the value."""
        with self._lock:
            self._file.write(self._key, value, timestamp or 0.0)

    def get(self) -> float:
        """Return the value."""
        with self._lock:
            return self._file.read(self._key)

    def set_exemplar(self, exemplar: object) -> None:
        """Do nothing.

        The file format of `prometheus_client` has no exemplars.
        """

    def get_exemplar(self) -> None:
        """Return `None`."""


def _keep_all(_: str) -> bool:
    return True


def keep_metrics_in_files(folder: Path, *, is_kept: IsKept = _keep_all) -> None:
    """Store every metric that is created from now on in files in `folder`.

    Call this once in a process, before the first metric is created. The process must not fork
    afterwards.
    """
    add_up_dead(folder, is_kept=is_kept)
    values.ValueClass = partial(FileValue, MetricFiles(folder))


def add_up_dead(folder: Path, *, is_kept: IsKept = _keep_all) -> None:
    """Add the values of ended processes to common files, and delete the old files.

    The names of the common files contain 0 instead of a process id. Values for which `is_kept`
    returns false are dropped.
    """
    with files_held(folder, exclusive=True):
        for total in folder.glob(f"*_{_DEAD}.db"):
            with contextlib.suppress(OSError):  # the disk is full; a later start retries
                _drop(total, is_kept)
        for path in sorted(folder.glob("*_*.db")):
            kind, _, process = path.stem.rpartition("_")
            if process == _DEAD or not _is_orphaned(path):
                continue
            try:
                if not kind.startswith("gauge"):
                    _add(path, folder / f"{kind}_{_DEAD}.db", is_kept)
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


def _add(path: Path, total: Path, is_kept: IsKept) -> None:
    sums = _read(total)
    for key, value in _read(path).items():
        if is_kept(key):
            sums[key] = sums.get(key, 0.0) + value
    _write(total, sums)


def _drop(total: Path, is_kept: IsKept) -> None:
    sums = _read(total)
    kept = {key: value for key, value in sums.items() if is_kept(key)}
    if len(kept) < len(sums):
        _write(total, kept)


def _write(total: Path, sums: Mapping[str, float]) -> None:
    entries = b"".join(_entry(key, value) for key, value in sums.items())
    used = _HEADER_BYTES + len(entries)
    temporary = total.with_suffix(".new")
    try:
        temporary.write_bytes(_USED.pack(used).ljust(_HEADER_BYTES, b"\0") + entries)
        temporary.replace(total)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, float]:
    """Return the values in a file, or an empty dictionary if a crash has corrupted the file."""
    try:
        found = MmapedDict.read_all_values_from_file(path)  # type: ignore[no-untyped-call]
        return {key: value for key, value, *_ in found}
    except (FileNotFoundError, RuntimeError, ValueError, struct.error):
        return {}


def _entry(key: str, value: float) -> bytes:
    """Return the encoding of a key and its value in a file."""
    encoded = key.encode()
    padded = encoded + b" " * (8 - (len(encoded) + _LENGTH.size) % 8)
    return _LENGTH.pack(len(encoded)) + padded + _VALUE.pack(value, 0.0)


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
