"""Reserves disk space, so that a SQLite ledger can be opened on a full disk.

The first process that opens the ledger creates a shared-memory file (`ledger.db-shm`), and the last
process deletes it. Without the reserve, a ledger could not be opened again once the disk is full.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from typing_extensions import override

_BYTES: Final = 64 * 1024
"""The shared-memory file takes 32 KiB, and the directory may grow by a block."""


class DiskReserve:
    """Reserves disk space. This base class reserves none, for databases without a file."""

    def keep(self) -> None:
        """Reserve the space, unless it is reserved already or the disk is full."""

    def release(self) -> bool:
        """Free the space; return whether any was reserved."""
        return False


class FileReserve(DiskReserve):
    """Reserves space with the file at `path`, which all processes share. Never raises."""

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
