"""Creates hidden folders in which models are prepared, and removes folders of dead processes.

A helper process waits until the process that made the folder has ended or was killed, and then
removes the folder. If the helper is also killed, the next import or the next start of a backend
removes the folder.

Each folder contains a mark file, which the process that made the folder keeps locked. So an import
or a backend removes only folders whose mark file is not locked.
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
# `read` returns once every process that holds the other end of the pipe has ended.
_REMOVE = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


@contextmanager
def open_staging(root: Path, prefix: str) -> Iterator[Path]:
    """Yield a new hidden folder in `root`.

    To publish a model from this folder, one rename is enough.

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
    """Remove folders of `open_staging` whose processes were killed."""
    for path in root.glob(f".*/{MARK}"):
        with suppress(OSError), path.open("rb") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


@contextmanager
def _removed_at_end(folder: Path) -> Iterator[None]:
    """Start a process, in its own session, that removes the folder when this process has ended."""
    with subprocess.Popen(  # noqa: S603 - this interpreter, and a folder created above
        [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield


@contextmanager
def _locked_mark(folder: Path) -> Iterator[None]:
    """Create and lock the mark file.

    The file gets its final name only after it is locked.
    """
    draft = folder / f"{MARK}.draft"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(folder / MARK)
        yield
    finally:
        os.close(descriptor)
