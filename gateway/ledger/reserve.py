"""Reserves disk space, so that processes can still open a SQLite ledger when the disk is full.

The first process that opens the ledger creates a shared-memory file (`ledger.db-shm`). The last
process that closes the ledger deletes the file. On a full disk, the next process could not create
the file again without the reserved space.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from typing_extensions import override

_BYTES: Final = 64 * 1024
"""Enough for the shared-memory file (32 KiB) and for a directory that grows by a block."""


class DiskReserve:
    """Reserves disk space.

    This base class is for databases without a file, and reserves nothing.
    """

    def keep(self) -> None:
        """Reserve the space, unless it is reserved already or the disk is full."""

    def release(self) -> bool:
        """Free the space; return whether space was reserved."""
        return False


class FileReserve(DiskReserve):
    """Reserves space with a file at `path`, which all processes share.

    The methods raise no errors.
    """

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
