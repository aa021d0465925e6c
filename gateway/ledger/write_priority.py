"""Gives short changes of a SQLite ledger priority over the long transactions of billing.

SQLite has one lock for writing, without a queue: a process that commits and begins again at once
keeps others out for seconds. So a short change holds a shared lock on a file beside the database;
bulk writers check for such locks before each transaction, and wait.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from typing_extensions import override

_LONGEST: Final = 1.0
"""Seconds that a bulk writer waits at most: short changes must not stop billing."""
_PAUSE: Final = 0.002


class WritePriority:
    """Orders the writers of a database; as it is, for databases that lock rows, nobody waits."""

    def prioritized(self) -> contextlib.AbstractContextManager[None]:
        """Make callers of `give_way` wait while the context lasts."""
        return contextlib.nullcontext()

    def give_way(self) -> None:
        """Wait until nobody is `prioritized`, for at most a second. Blocks."""


class FileWritePriority(WritePriority):
    """Orders the processes of a machine by advisory locks on `path`.

    If the file cannot be opened or locked (another user's file, a full disk, a file system without
    locks), all write without priorities.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    @contextlib.contextmanager
    def prioritized(self) -> Iterator[None]:
        """Hold a shared lock; see `WritePriority`."""
        with self._opened() as file:
            if file is not None:
                # A check holds the lock for a moment, but a stopped process holds it for ever.
                _wait(lambda: _locks(file, fcntl.LOCK_SH))
            yield

    @override
    def give_way(self) -> None:
        """Wait until no shared lock is held; see `WritePriority`."""
        with self._opened() as file:
            if file is not None:
                _wait(lambda: _locks(file, fcntl.LOCK_EX))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        # Opened each time: a lock belongs to an open file, which threads must not share.
        try:
            file = os.open(self._path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o644)
        except OSError:
            yield None
            return
        try:
            yield file
        finally:
            os.close(file)


def _wait(holds: Callable[[], bool]) -> None:
    """Wait until `holds()`, for at most a second."""
    until = time.monotonic() + _LONGEST
    while not holds() and time.monotonic() < until:
        time.sleep(_PAUSE)


def _locks(file: int, how: int) -> bool:
    """Lock `file`; return whether that succeeded, or there are no locks."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        return True
    return True
