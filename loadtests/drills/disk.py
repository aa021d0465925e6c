"""Mounts a disk of bounded size, which a drill fills."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LARGE, _BLOCK = 2**20, 4096


class Disk:
    """What is mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no block free."""
        with self._filler.open("ab") as file:
            for size in (_LARGE, _BLOCK):
                with suppress(OSError):
                    while os.write(file.fileno(), bytes(size)):
                        pass

    def empty(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def mounted(path: Path, *, size_bytes: int) -> Iterator[Disk]:
    """Mount a file system in memory, which needs root."""
    path.mkdir()
    options = f"size={size_bytes}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)  # noqa: S607
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)  # noqa: S607
