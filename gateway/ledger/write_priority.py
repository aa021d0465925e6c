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
from collections.abc import Iterator
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
    """A `WritePriority` among the processes of a machine, by advisory locks on `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Hold a shared lock; see `WritePriority`."""
        # Opened each time: a lock belongs to an open file, and threads must not share one.
        file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield
        finally:
            os.close(file)

    def give_way(self) -> None:
        """Wait until no shared lock is held; see `WritePriority`."""
        file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            until = time.monotonic() + _LONGEST
            while not _is_free(file) and time.monotonic() < until:
                time.sleep(_PAUSE)
        finally:
            os.close(file)


def _is_free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
