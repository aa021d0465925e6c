"""Appends lines to a file, and rotates the file when it is large."""

import contextlib
import io
from pathlib import Path


class RotatingFile:
    """Appends to `path`, and keeps `keep` older files.

    The newest of these is `path.1`. Methods block.
    """

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep

    def append(self, lines: bytes) -> None:
        """Append all `lines` or none. If a power cut has torn the last line, begin a new one.

        Each call opens the file again, because another program may have moved the file.

        Raises:
            OSError: the lines cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = self._path.stat().st_size if self._path.exists() else 0
        if size and size + len(lines) > self._max_bytes:
            self._rotate()
        with self._path.open("a+b", buffering=0) as file:
            _write(file, b"\n" + lines if _is_torn(file) else lines)

    def _rotate(self) -> None:
        for number in range(self._keep, 1, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _is_torn(file: io.FileIO) -> bool:
    """Return whether the file's last line has no end. The next write is after that line."""
    return file.tell() > 0 and file.seek(-1, io.SEEK_END) >= 0 and file.read(1) != b"\n"


def _write(file: io.FileIO, lines: bytes) -> None:
    """Write all `lines`. If that fails, remove the part that was written."""
    size, left = file.tell(), memoryview(lines)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(size)
        raise
