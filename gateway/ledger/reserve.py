"""Keeps room on the disk for what SQLite must write before a ledger can be read.

Whoever opens a ledger first makes the file of its shared memory (`ledger.db-shm`), and who closes
it last deletes that. On a disk that is full meanwhile nobody could open it again.
"""

import contextlib
import os
from pathlib import Path
from typing import Final, Protocol

_BYTES: Final = 64 * 1024
"""The shared memory has 32 KiB; the folder may have to grow by a block."""


class Reserve(Protocol):
    """Room that is kept, and given up when there is no other."""

    def keep(self) -> None:
        """Reserve the room unless it is; where there is none, none is kept."""
        ...

    def give_up(self) -> bool:
        """Make the room free; return whether any was kept."""
        ...


class NoReserve:
    """A `Reserve` of databases without a file."""

    def keep(self) -> None:
        """Do nothing."""

    def give_up(self) -> bool:
        """Return `False`."""
        return False


class FileReserve:
    """A `Reserve` that is the file `path`, for all processes of the ledger. Never raises."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self) -> None:
        """Reserve 64 KiB; see `Reserve`."""
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(file).st_size < _BYTES:
                    os.posix_fallocate(file, 0, _BYTES)
            except OSError:
                self._path.unlink()
            finally:
                os.close(file)

    def give_up(self) -> bool:
        """Delete the file; see `Reserve`."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
