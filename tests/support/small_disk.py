"""Mounts a file system of a few megabytes that a test can fill to its last byte."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHUNK = 1 << 16


class SmallDisk:
    """What is mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, *, leave: int = 0) -> None:
        """Leave no room for another byte, or for so many."""
        if leave:
            with self._filler.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, self.free_bytes - leave)
            return
        with self._filler.open("ab", buffering=0) as file:
            for size in (_CHUNK, 512, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """How much can still be written."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@contextmanager
def mounted(path: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system; skip the test where that is not allowed."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system is mounted for this test, which needs root")
    try:
        yield SmallDisk(path)
    finally:
        unmount = ["umount", "--lazy", str(path)]
        subprocess.run(unmount, check=True)
