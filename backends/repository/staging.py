"""Creates hidden folders to prepare models in, and removes those of killed processes.

A folder is marked by a file that its process keeps locked: only what bears the mark and is locked
by nobody is removed. A folder of the same name that somebody else made has no mark.

A small process beside it waits for the end of the one that prepares, however that ends, and removes
the folder. Where both are killed, the next import and the next start of a backend remove it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = ".sluicegate-staging"
# It reads until every process that could write is gone.
_REMOVE = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


@contextmanager
def open_staging(root: Path, prefix: str) -> Iterator[Path]:
    """Yield a new hidden folder of `root`, on its disk: to publish from it is one rename.

    Raises:
        OSError: `root` cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    remove_abandoned(root)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    try:
        with _removed_at_end(folder), _locked_mark(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(root: Path) -> None:
    """Remove the folders that processes made by `open_staging` and did not live to remove."""
    for path in root.glob(f".*/{MARK}"):
        with suppress(OSError), path.open("rb") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


@contextmanager
def _removed_at_end(folder: Path) -> Iterator[None]:
    """Have a process of a session of its own remove the folder when this one is gone."""
    with subprocess.Popen(  # noqa: S603 - this interpreter and a folder of ours
        [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield


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
