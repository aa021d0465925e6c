"""Gives short transactions on a SQLite ledger priority over billing's long transactions.

SQLite has one lock for writing, and no queue for the lock. A process that begins its next
transaction right after a commit can keep other processes out for seconds. Therefore a short
transaction takes a shared lock on a file beside the database. Before each of its transactions, a
bulk writer such as billing waits until no process holds that shared lock.
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
"""Maximum seconds that a bulk writer waits, because short transactions must not stop billing."""
_PAUSE: Final = 0.002


class WritePriority:
    """Orders the writers of a database.

    This base class does nothing, because writers in PostgreSQL lock rows and not the database.
    """

    def prioritized(self) -> contextlib.AbstractContextManager[None]:
        """While the context lasts, make callers of `give_way` wait."""
        return contextlib.nullcontext()

    def give_way(self) -> None:
        """Wait until no writer is inside `prioritized`, but at most a second. Blocks the thread."""


class FileWritePriority(WritePriority):
    """Orders the processes of a machine by advisory locks on the file at `path`.

    There are no priorities if the file cannot be opened or locked. This happens if the file belongs
    to another user, the disk is full, or the file system has no locks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    @contextlib.contextmanager
    def prioritized(self) -> Iterator[None]:
        """Hold a shared lock; see `WritePriority`."""
        with self._opened() as file:
            if file is not None:
                # The wait is limited, because a suspended process could hold the exclusive lock for
                # ever.
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
        # Opened anew for each use. A lock belongs to the opened file, so threads must not share it.
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
    """Call `holds` until it returns true, but for at most a second."""
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
