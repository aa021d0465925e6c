"""Opens the data directory of a supervisor: its lock, secrets, logs and sockets."""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.supervisor import process_table
from gateway.supervisor.errors import CannotStart, ExitCode

# A Unix socket's path ends at 107 bytes on Linux, at 103 elsewhere.
_LONGEST_SOCKET_FOLDER = 85
_ELSEWHERE = "sockets"


class DataDirectory:
    """Paths below `root`, which is absolute and belongs to this process while it holds the lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.placement = root / "placement.yaml"

    def secret(self, name: str, make: Callable[[], str] = secrets.token_urlsafe) -> str:
        """Return the secret kept in the file `name`, which only its owner can read."""
        path = self.root / name
        with contextlib.suppress(FileNotFoundError):
            if text := path.read_text().strip():
                return text
        text = make()
        temporary = self.root / f".{name}"
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text + "\n")
        temporary.replace(path)
        return text

    def folder(self, name: str) -> Path:
        """Return a folder below the root, made when it is not there."""
        path = self.root / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def sockets(self) -> Path:
        """Return the folder for Unix sockets: below the root, or temporary if its path is long."""
        inside = self.root / "run"
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET_FOLDER:
            return self.folder("run")
        elsewhere = Path(tempfile.mkdtemp(prefix="sluicegate-"))  # mode 0700
        (self.root / _ELSEWHERE).write_text(str(elsewhere))
        return elsewhere

    def remove_sockets(self) -> None:
        """Remove the folder for sockets that is not in the root."""
        record = self.root / _ELSEWHERE
        with contextlib.suppress(FileNotFoundError):
            folder = Path(record.read_text())
            if folder.name.startswith("sluicegate-"):
                shutil.rmtree(folder, ignore_errors=True)
            record.unlink()


@contextlib.contextmanager
def open_directory(root: Path, say: Callable[[str], None]) -> Iterator[DataDirectory]:
    """Lock `root` for this process, and end processes that a killed supervisor left there.

    Raises:
        CannotStart: another process has it, or it cannot be written.
    """
    root = root.absolute()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (root / "lock").open("a+")
    except OSError as error:
        raise CannotStart(
            f"`{root}` cannot be used ({error.strerror}); choose another with `--data-dir`"
        ) from error
    with lock:
        _lock(lock.fileno(), root)
        directory = DataDirectory(root)
        if ended := process_table.end_leftovers(root):
            say(f"ended {ended} processes that a former run left behind")
        directory.remove_sockets()
        directory.folder("logs")
        # Of processes that are gone; the folder may be one that holds more.
        for left in directory.folder("metrics").glob("*_*.db"):
            left.unlink(missing_ok=True)
        try:
            yield directory
        finally:
            directory.remove_sockets()
            (root / process_table.FILE).unlink(missing_ok=True)


def _lock(descriptor: int, root: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise CannotStart(
            f"another sluicegate runs on `{root}`; stop it or choose another `--data-dir`",
            exit_code=ExitCode.BUSY,
        ) from error
