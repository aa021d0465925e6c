"""Remembers, beside a log's segments, up to where the ledger was seen to have the log."""

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

NAME: Final = "committed.mark"
_MARK: Final = struct.Struct("<Q")


class CommittedMark:
    """The highest sequence number of the log in `directory` that was committed when last seen.

    A ledger that is behind it has gone back, as one restored from a backup does. Where the file
    cannot be written, `value` is right as long as the process lives.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self.value = 0
        with contextlib.suppress(OSError, struct.error):
            (self.value,) = _MARK.unpack(self._path.read_bytes())

    def move(self, value: int) -> None:
        """Remember `value`, which may be behind the one before."""
        if value == self.value:
            return
        self.value = value
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.pwrite(file, _MARK.pack(value), 0)
            finally:
                os.close(file)
