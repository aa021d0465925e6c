"""Gives short transactions on a SQLite ledger priority over billing's long transactions.

SQLite has one lock for writing, and no queue for it. A process that commits and begins again at
once can keep others out for seconds. Therefore a short transaction holds a shared lock on a file
beside the database. A bulk writer waits for these locks before each of its transactions.
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
"""Maximum seconds that a bulk writer waits: short transactions must not stop billing."""
_PAUSE: Final = 0.002


class WritePriority:
    """Orders the writers of a database.

    This base class does nothing, because writers in PostgreSQL lock rows and not the database.
    """

    def prioritized(self) -> contextlib.AbstractContextManager[None]:
        """Make callers of `give_way` wait until the context ends."""
        return contextlib.nullcontext()

    def give_way(self) -> None:
        """Wait until nobody is `prioritized`, for at most a second. Blocks the thread."""


class FileWritePriority(WritePriority):
    """Orders the processes of a machine by advisory locks on the file at `path`.

    If the file cannot be opened or locked (another user's file, a full disk, a file system without
    locks), there are no priorities.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    @contextlib.contextmanager
    def prioritized(self) -> Iterator[None]:
        """Hold a shared lock; see `WritePriority`."""
        with self._opened() as file:
            if file is not None:
                # Bounded, because a suspended process could hold the exclusive lock for ever.
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
        # Opened for each use: a lock belongs to the open file, which threads must not share.
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
    """Wait until `holds` returns true, for at most a second."""
    until = time.monotonic() + _LONGEST
    while not holds() and time.monotonic() < until:
        time.sleep(_PAUSE)


def _locks(file: int, how: int) -> bool:
    """Try to lock `file`; return false only if another process holds a conflicting lock."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True
