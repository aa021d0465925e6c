"""Creates hidden folders to prepare models in, and removes those of killed processes.

A folder is marked by a file that its process keeps locked: only what bears the mark and is locked
by nobody is removed. A folder of the same name that somebody else made has no mark.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = ".sluicegate-staging"


@contextmanager
def open_staging(root: Path, prefix: str) -> Iterator[Path]:
    """Yield a new hidden folder of `root`, on its disk: to publish from it is one rename.

    Raises:
        OSError: `root` cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_abandoned(root, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    try:
        with _locked_mark(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(root: Path, prefix: str) -> None:
    """Remove the folders that processes made by `open_staging` and did not live to remove."""
    for folder in root.glob(f"{prefix}*"):
        with suppress(OSError), (folder / MARK).open("rb") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked_mark(folder: Path) -> Iterator[None]:
    """Hold the lock of the mark, which is there under its name only once it is locked."""
    draft = folder / f"{MARK}.draft"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(folder / MARK)
        yield
    finally:
        os.close(descriptor)
