"""Locks a file, so that only one process at a time uses a data directory."""

import fcntl
import os
from pathlib import Path
from typing import Self


class FileLock:
    """Locks the file `path`, from `take` until the end of the context or of the process.

    `held` says whether this process has the lock.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        self.held = False

    def take(self) -> bool:
        """Take the lock if it is free; return whether this process has the lock."""
        if not self.held:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self.held = True
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._file)
        self.held = False
