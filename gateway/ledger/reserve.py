"""Reserves disk space for the file that SQLite must create before a ledger can be read.

The first process that opens a ledger creates its shared memory (`ledger.db-shm`); the last one
deletes it. If the disk is full by then, the ledger cannot be opened again.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from typing_extensions import override

_BYTES: Final = 64 * 1024
"""The shared memory takes 32 KiB, and the folder may grow by a block."""


class DiskReserve:
    """Reserves disk space for when the disk is full; none, for databases without a file."""

    def keep(self) -> None:
        """Reserve the space if it is not reserved, as far as there is any."""

    def release(self) -> bool:
        """Free the space; return whether any was reserved."""
        return False


class FileReserve(DiskReserve):
    """Reserves space by the file `path`, for all processes. Never raises."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    def keep(self) -> None:
        """Reserve 64 KiB."""
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(file).st_size < _BYTES:
                    os.posix_fallocate(file, 0, _BYTES)
            except OSError:
                self._path.unlink()
            finally:
                os.close(file)

    @override
    def release(self) -> bool:
        """Delete the file."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
