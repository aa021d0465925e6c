"""Stores the last sequence number of an event log that the ledger has committed.

The number is in a file beside the log's segments.
"""

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

NAME: Final = "committed.mark"
_MARK: Final = struct.Struct("<Q")


class CommittedMark:
    """Stores the last sequence number of one log that the ledger is known to have committed.

    If the ledger later reports a lower number, the ledger was restored from a backup. The number is
    in a file in `directory`, the folder of the log. If the file cannot be written, only this
    process knows the number.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self.value = 0
        with contextlib.suppress(OSError, struct.error):
            (self.value,) = _MARK.unpack(self._path.read_bytes())

    def set(self, value: int) -> None:
        """Store `value`, even if it is lower than the stored value."""
        if value == self.value:
            return
        self.value = value
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.pwrite(file, _MARK.pack(value), 0)
            finally:
                os.close(file)
