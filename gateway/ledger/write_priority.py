"""Lets short changes of a SQLite ledger go before the long transactions of billing.

SQLite has one lock for writing and hands it to whoever asks at the right moment: a process that
commits and begins again at once keeps others out for seconds. Who has a short change holds a shared
lock on a file beside the database; who records in bulk looks for such locks before each
transaction, and gives way.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

_LONGEST: Final = 1.0
"""Seconds that recording gives way for at a time: short changes must not hold up billing."""
_PAUSE: Final = 0.002


class WritePriority(Protocol):
    """Orders the writers of a database."""

    def ahead(self) -> contextlib.AbstractContextManager[None]:
        """Be waited for by those who `give_way`, as long as the context lasts."""
        ...

    def give_way(self) -> None:
        """Return once nobody is `ahead`, at the latest after a second. Blocks."""
        ...


class NoPriority:
    """A `WritePriority` of databases that lock rows: nobody need wait."""

    def ahead(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing."""
        return contextlib.nullcontext()

    def give_way(self) -> None:
        """Return."""


class FileWritePriority:
    """A `WritePriority` among the processes of a machine, by advisory locks on `path`.

    Order is a courtesy: where the file cannot be opened or locked (it is another user's, the disk
    is full, the file system has no locks), everybody writes as if nobody waited.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Hold a shared lock; see `WritePriority`."""
        with self._opened() as file:
            if file is not None:
                # Who looks for locks holds one for a moment; a process that is stopped, for ever.
                _wait(lambda: _locks(file, fcntl.LOCK_SH))
            yield

    def give_way(self) -> None:
        """Wait until no shared lock is held; see `WritePriority`."""
        with self._opened() as file:
            if file is not None:
                _wait(lambda: _locks(file, fcntl.LOCK_EX))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        # Opened each time: a lock belongs to an open file, and threads must not share one.
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
    """Return once `holds()`, at the latest after a second."""
    until = time.monotonic() + _LONGEST
    while not holds() and time.monotonic() < until:
        time.sleep(_PAUSE)


def _locks(file: int, how: int) -> bool:
    """Lock `file`, and tell whether there is nothing to wait for any more."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        return True
    return True
