"""The disk of a simulated machine: real files in a folder, with faults and power cuts.

What `fsync` confirmed survives a power cut. Of later writes some pages survive, and one of them may
be torn. Names survive as they are or as they were at the last sync, as in a journal of metadata.
Databases of SQLite stay as they are: their commits are synced.

The time of a file is the time of its machine at the last write of a simulated process. Writes of
SQLite, and writes to mapped memory, do not change it.
"""

import errno
import io
import math
import os
import random
import stat
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from testing.simulation.clock import sleep
from testing.simulation.scheduler import here

_PAGE, _SECTOR = 4096, 512
_SYNC: Final = (0.0002, 0.002)
"""Seconds that a sync takes, at least and at most."""
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_TCP_TABLES: Final = ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6")
_SMALL: Final = 1 << 16
Content = tuple[bytes, int]
"""The content of a file without zeros at its end, and its size."""
_SQLITE: Final = ("", "-wal", "-shm", "-journal")


class Disk:
    """Has the files of a machine, in `folder`. `clock` returns the machine's Unix time."""

    def __init__(self, folder: Path, seed: object, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.folder = Path(os.path.normpath(folder.absolute()))
        self.is_full = False
        """Whether files cannot grow."""
        self.is_broken = False
        """Whether writes and syncs fail."""
        self.sync_seconds = 0.0
        """How many seconds longer than usual a sync takes."""
        self.databases: set[str] = set()
        """Paths of SQLite's databases."""
        self._random = random.Random(f"disk {seed} {folder.name}")
        self._synced: dict[int, Content] = {}
        """The content of files at their last sync, by inode."""
        self._names: dict[str, int] = {}
        """The inodes by path at the last sync of any file."""
        self._folders: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._beginnings = (f"{self.folder}/", f"{folder.resolve()}/")
        self.settle()

    def reseed(self, seed: object) -> None:
        """Draw all random values from another seed."""
        self._random.seed(f"disk {seed} {self.folder.name}")

    def has(self, path: str) -> bool:
        """Return whether a path is on this disk."""
        absolute = os.path.abspath(path)  # noqa: PTH100 - a `Path` takes ten times as long
        return f"{absolute}/".startswith(self._beginnings)

    def check(self, *, grows: bool) -> None:
        """Raise the error of a write that makes a file grow, or not.

        Raises:
            OSError: the disk is broken or full.
        """
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if grows and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stamp(self, file: int | str) -> None:
        """Set the time of a file to the present time of the machine."""
        now = round(self._clock() * 1e9)
        os.utime(file, ns=(now, now))

    def stamp_below(self, folder: Path) -> None:
        """Set the time of each file in a folder to the present time of the machine."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.stamp(str(path))

    def sync(self, file: int) -> None:
        """Make the content of a file survive a power cut once this call returns."""
        self.check(grows=False)
        link, status, content = f"/proc/self/fd/{file}", os.fstat(file), None
        if stat.S_ISREG(status.st_mode) and self.has(os.readlink(link)):  # noqa: PTH115 - as above
            content = read_content(link)
        sleep(self._random.uniform(*_SYNC) + self.sync_seconds)
        self.check(grows=False)
        if content is not None:
            self._synced[status.st_ino] = content
        self._names, self._folders = self._walk()

    def settle(self) -> None:
        """Make everything survive a power cut that is on the disk now."""
        self._names, self._folders = self._walk()
        self._synced = {inode: read_content(path) for path, inode in self._names.items()}

    def lose_power(self) -> None:
        """Leave on the disk what a power cut leaves."""
        names, folders = self._walk()
        latest = {inode: Path(path).read_bytes() for path, inode in names.items()}
        times = {inode: Path(path).stat().st_mtime_ns for path, inode in names.items()}
        if self._random.random() < 0.5:
            names, folders = self._names, self._folders
        kept = {
            Path(path): self._survivor(_whole(self._synced.get(inode)), latest.get(inode))
            for path, inode in names.items()
            if not self._is_database(path)
        }
        self._rewrite(kept, [Path(each) for each in folders])
        now = round(self._clock() * 1e9)
        for path in kept:
            written = times.get(names[str(path)], now)
            os.utime(path, ns=(written, written))
        self.settle()

    def _rewrite(self, files: dict[Path, bytes], folders: list[Path]) -> None:
        """Leave nothing but these files and folders, and the databases."""
        former, former_folders = self._walk()
        for name in former:
            if not self._is_database(name):
                Path(name).unlink()
        for path in map(Path, reversed(former_folders)):
            if path not in folders and not any(path.iterdir()):
                path.rmdir()
        for path in folders:
            path.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            path.write_bytes(content)

    def _survivor(self, synced: bytes, latest: bytes | None) -> bytes:
        """Return what is left of a file: its synced content with some of the later writes."""
        if latest is None or synced == latest:
            return synced
        share = self._random.choice((0.0, 0.5, 0.9, 1.0))
        if len(latest) != len(synced):
            if not latest.startswith(synced):
                return latest if self._random.random() < share else synced
            tail = len(latest) - len(synced)
            return latest[: len(synced) + int(tail * self._random.random() * share)]
        left = bytearray(synced)
        for begin in range(0, len(latest), _PAGE):
            page = latest[begin : begin + _PAGE]
            if page != synced[begin : begin + _PAGE] and self._random.random() < share:
                sectors = self._random.choice((_PAGE // _SECTOR, self._random.randrange(8)))
                left[begin : begin + sectors * _SECTOR] = page[: sectors * _SECTOR]
        return bytes(left[: len(latest)])

    def _is_database(self, path: str) -> bool:
        return any(f"{each}{suffix}" == path for each in self.databases for suffix in _SQLITE)

    def _walk(self) -> tuple[dict[str, int], list[str]]:
        """Return the inodes of the files, and the folders."""
        files: dict[str, int] = {}
        folders = [str(self.folder)]
        for folder in folders:
            for entry in sorted(os.scandir(folder), key=_name_of):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files[entry.path] = entry.inode()
        return files, folders[1:]


_name_of: Final = attrgetter("name")


def read_content(path: str) -> Content:
    """Read a file, but not the hole at its end: logs reserve megabytes."""
    with _real_open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if size < _SMALL else 0
        while end < size:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:  # there is no more data
                break
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
        file.seek(0)
        return file.read(end), size


def _whole(content: Content | None) -> bytes:
    return b"" if content is None else content[0].ljust(content[1], b"\0")


class _File(io.FileIO):
    """A file that is open for writing on a simulated disk."""

    def __init__(self, disk: Disk, file: Any, mode: str, *, closefd: bool, opener: Any) -> None:
        super().__init__(file, mode, closefd=closefd, opener=opener)
        self._disk = disk
        if "r" not in mode and not os.fstat(self.fileno()).st_size:
            disk.stamp(self.fileno())  # it may be new

    @override
    def write(self, data: Any) -> int:
        """Write, or raise the disk's error."""
        self._disk.check(grows=True)
        count = super().write(data)
        self._disk.stamp(self.fileno())
        return count

    @override
    def truncate(self, size: int | None = None) -> int:
        """Cut the file off, or let it grow."""
        size = super().truncate(size)
        self._disk.stamp(self.fileno())
        return size


_real_open: Final = io.open
_real_os: Final = {
    name: getattr(os, name)
    for name in (
        "open",
        "write",
        "pwrite",
        "writev",
        "fsync",
        "fdatasync",
        "mkdir",
        "posix_fallocate",
        "truncate",
        "stat",
        "fstat",
    )
}


def _disk_of(file: int | str | os.PathLike[str] | bytes) -> Disk | None:
    """Return the disk of the running machine if it has the file."""
    strand = here.strand
    if strand is None or isinstance(file, bytes):
        return None
    disk = strand.process.machine.disk
    path = (
        os.readlink(f"/proc/self/fd/{file}")  # noqa: PTH115 - a `Path` takes long
        if isinstance(file, int)
        else os.fspath(file)
    )
    return disk if disk.has(path) else None


def open_file(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,  # noqa: FBT001, FBT002
    opener: Any = None,
) -> Any:
    """Open a file as `open` does; writes to a simulated disk can fail."""
    strand = here.strand
    if strand is None:
        return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    name = "" if isinstance(file, int | bytes) else os.fspath(file)
    if name == BOOT_ID or name in _TCP_TABLES:
        text = f"{strand.process.machine.boot_id}\n" if name == BOOT_ID else ""
        return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text)
    disk = _disk_of(file)
    if disk is None or not set(mode) & set("wax+"):
        return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    raw_mode = mode.replace("b", "").replace("t", "")
    disk.check(grows="w" in mode or "x" in mode)
    raw = _File(disk, file, raw_mode, closefd=closefd, opener=opener)
    if buffering == 0:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffered: Any = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
    if "b" in mode:
        return buffered
    return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)


def open_descriptor(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
    """Open a file as `os.open` does; a full disk creates none."""
    disk = None if "dir_fd" in options else _disk_of(path)
    is_new = disk is not None and flags & os.O_CREAT and not Path(path).exists()
    if disk is not None and is_new:
        disk.check(grows=True)
    file = int(_real_os["open"](path, flags, mode, **options))
    if disk is not None and (is_new or flags & os.O_TRUNC):
        disk.stamp(file)
    return file


def write(file: int, data: Any) -> int:
    """Write as `os.write` does, or raise the disk's error."""
    return int(_changed("write", file, data))


def writev(file: int, buffers: Any) -> int:
    """Write as `os.writev` does, or raise the disk's error."""
    return int(_changed("writev", file, buffers))


def pwrite(file: int, data: Any, offset: int) -> int:
    """Write as `os.pwrite` does, or raise the disk's error."""
    return int(_changed("pwrite", file, data, offset, end=offset + len(data)))


def allocate(file: int, offset: int, size: int) -> None:
    """Reserve blocks as `os.posix_fallocate` does, or raise the disk's error."""
    _changed("posix_fallocate", file, offset, size, end=offset + size)


def truncate(file: Any, length: int) -> None:
    """Cut a file off as `os.truncate` and `os.ftruncate` do."""
    _changed("truncate", file, length, end=0)


def _changed(name: str, file: Any, *args: Any, end: float = math.inf) -> Any:
    """Change a file up to the byte `end`, or raise the disk's error."""
    disk = None if here.strand is None else _disk_of(file)
    if disk is None:
        return _real_os[name](file, *args)
    disk.check(grows=end > os.stat(file).st_size)  # noqa: PTH116 - it may be a descriptor
    result = _real_os[name](file, *args)
    disk.stamp(file)
    return result


def status(path: Any, **options: Any) -> os.stat_result:
    """Return the status of a file as `os.stat` does; see `_virtual`."""
    return _virtual(_real_os["stat"](path, **options))


def status_of(file: int) -> os.stat_result:
    """Return the status of an open file as `os.fstat` does; see `_virtual`."""
    return _virtual(_real_os["fstat"](file))


def _virtual(found: os.stat_result) -> os.stat_result:
    """Return a status whose last change was the last write: no call sets the kernel's `ctime`."""
    if here.strand is None or not stat.S_ISREG(found.st_mode):
        return found
    state: Any = found.__reduce__()[1]
    values, named = state
    named |= {"st_ctime": named["st_mtime"], "st_ctime_ns": named["st_mtime_ns"]}
    return os.stat_result((*values[:9], values[8]), named)


def make_folder(path: Any, *args: Any, **options: Any) -> None:
    """Create a folder as `os.mkdir` does; a full disk creates none."""
    disk = None if "dir_fd" in options else _disk_of(path)
    if disk is not None:
        disk.check(grows=True)
    _real_os["mkdir"](path, *args, **options)


def sync(file: Any) -> None:
    """Sync a file to the disk of the running machine."""
    strand = here.strand
    number = file if isinstance(file, int) else file.fileno()
    if strand is None:
        _real_os["fsync"](number)
    else:
        strand.process.machine.disk.sync(number)


REPLACEMENTS: Final[dict[str, Any]] = {
    "open": open_descriptor,
    "write": write,
    "writev": writev,
    "pwrite": pwrite,
    "fsync": sync,
    "fdatasync": sync,
    "mkdir": make_folder,
    "posix_fallocate": allocate,
    "truncate": truncate,
    "ftruncate": truncate,
    "stat": status,
    "fstat": status_of,
}
"""The functions of the module `os` that a simulation replaces."""
