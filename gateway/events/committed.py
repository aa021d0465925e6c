"""Stores beside a log's segments, the last mark up to which the ledger had the log."""

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

NAME: Final = "committed.mark"
_MARK: Final = struct.Struct("<Q")


class CommittedMark:
    """Stores the last committed sequence number of the log in `directory`, as last seen.

    A ledger whose mark is lower was restored from a backup. If the file cannot be written, `value`
    is kept in this process only.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self.value = 0
        with contextlib.suppress(OSError, struct.error):
            (self.value,) = _MARK.unpack(self._path.read_bytes())

    def set(self, value: int) -> None:
        """Store `value`, which may be lower than before."""
        if value == self.value:
            return
        self.value = value
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.pwrite(file, _MARK.pack(value), 0)
            finally:
                os.close(file)
