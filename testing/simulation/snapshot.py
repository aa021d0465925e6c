"""Lets a process fork again and again, while each child finds the same files.

Parent and child share inodes. So the files of a folder are put back in place after each child:
SQLite and logs know their open files by the inode. A child opens all files again, because an open
file that it shared with its parent would stay locked after the child has closed the file.
"""

import ctypes
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import Final

from testing.simulation.disk import read_content

_LOCK: Final = re.compile(r"^lock:.* FLOCK +ADVISORY +(READ|WRITE) ", re.MULTILINE)
_FLAGS: Final = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
_AT_FIRST: Final = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOFOLLOW
_DESCRIPTORS: Final = Path("/proc/self/fd")


def fork() -> int:
    """Fork without Python's preparations, by which simulated threads would end in the child."""
    return int(ctypes.PyDLL(None).fork())


class _Kept:
    """A file as it was. `link` is another name of its inode."""

    def __init__(self, path: Path, link: Path) -> None:
        self.path, self.link = path, link
        status = path.stat()
        self._times = status.st_atime_ns, status.st_mtime_ns
        self._content = read_content(str(path))
        link.hardlink_to(path)

    def restore(self) -> None:
        if not (self.path.exists() and self.path.samefile(self.link)):
            self.path.unlink(missing_ok=True)
            self.path.hardlink_to(self.link)
        content, size = self._content
        now, _ = found = read_content(str(self.path))
        if found != self._content:
            with self.path.open("r+b", buffering=0) as file:
                file.write(content.ljust(min(len(now), size), b"\0"))
                file.truncate(size)
        os.utime(self.path, ns=self._times)


class _Open:
    """The offset and the lock of an open file. Its lock is released."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        status = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        lock, flags = _LOCK.search(status), _FLAGS.search(status)
        kinds = {None: 0, "READ": fcntl.LOCK_SH, "WRITE": fcntl.LOCK_EX}
        self._lock = kinds[lock.group(1) if lock else None]
        self._flags = (int(flags.group(1), 8) if flags else 0) & ~_AT_FIRST
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def open_again(self) -> None:
        """Open and lock the file under the same descriptor, sharing nothing with the parent."""
        opened = os.open(f"/proc/self/fd/{self._descriptor}", self._flags)
        os.dup2(opened, self._descriptor, inheritable=False)
        os.close(opened)
        os.lseek(self._descriptor, self._offset, os.SEEK_SET)
        if self._lock:
            fcntl.flock(self._descriptor, self._lock | fcntl.LOCK_NB)


class Snapshot:
    """Has the files of `folder`, and how this process has them open.

    The process gives up all its locks, because a child would wait for them. A child takes the locks
    of `flock` again; it inherits no POSIX locks. `links` is a new folder of the same file system.
    No thread of a simulation may run in this process from now on.
    """

    def __init__(self, folder: Path, links: Path) -> None:
        self._folder = folder
        links.mkdir()
        self._folders = {path for path in folder.rglob("*") if path.is_dir()}
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        # Reading closes a descriptor of each file, and with it all POSIX locks are gone.
        self._files = {path: _Kept(path, links / f"{n}") for n, path in enumerate(files)}
        inside = f"{folder.resolve()}/"
        opened = [link for link in _DESCRIPTORS.iterdir() if link.exists() or link.is_symlink()]
        targets = {int(link.name): _target(link) for link in opened}
        lost = [each for each in targets.values() if each.startswith(inside) and "(del" in each]
        if lost:
            raise RuntimeError(f"a file is open that has no name: {lost}")
        mine = sorted(number for number, target in targets.items() if target.startswith(inside))
        self._open = [*map(_Open, mine)]

    def open_again(self) -> None:
        """Open the files again, in a child."""
        for each in self._open:
            each.open_again()

    def restore(self) -> None:
        """Put everything back, after a child has ended."""
        for path in sorted(self._folder.rglob("*"), reverse=True):
            if path.is_dir() and path not in self._folders:
                shutil.rmtree(path)
            elif not path.is_dir() and path not in self._files:
                path.unlink()
        for folder in sorted(self._folders):
            folder.mkdir(exist_ok=True)
        for kept in self._files.values():
            kept.restore()


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # the listing's own descriptor
        return ""
