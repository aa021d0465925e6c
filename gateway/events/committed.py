"""Stores the last mark up to which the ledger had committed a log, beside its segments."""

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

NAME: Final = "committed.mark"
_MARK: Final = struct.Struct("<Q")


class CommittedMark:
    """Stores the last known committed sequence number of the log in `directory`.

    A ledger with a lower mark was restored from a backup. If the file cannot be written, only this
    process has `value`.
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
