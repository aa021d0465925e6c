"""Opens the data directory of a supervisor: its lock, secrets, logs and sockets."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gateway.app.secret import kept_secret
from gateway.auth.keys import is_well_formed, new_key
from gateway.settings import Settings
from gateway.supervisor import process_table
from gateway.supervisor.errors import CannotStart, ExitCode
from gateway.workers.file_lock import FileLock

# A Unix socket's path ends at 107 bytes on Linux, at 103 elsewhere.
_LONGEST_SOCKET_FOLDER = 85
_ELSEWHERE = "sockets"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Both keys in plain text; for this process and its first lines of output."""

    admin_key: str
    demo_key: str


class DataDirectory:
    """Paths below `root`, which is absolute and belongs to this process while it holds the lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.placement = root / "placement.yaml"

    def secret(self, name: str, make: Callable[[], str] = secrets.token_urlsafe) -> str:
        """Return the secret kept in the file `name`, which only its owner can read."""
        return kept_secret(self.root / name, make)

    def settings_of_children(self, settings: Settings) -> Settings:
        """Return `settings` for the processes in this directory; only one of them gets a key."""
        return msgspec.structs.replace(
            settings,
            data_dir=self.root,
            config=settings.config.absolute(),
            secret=settings.secret or self.secret("secret"),
            admin_key="",
            listen_fd=None,
        )

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
    with contextlib.ExitStack() as stack:
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_free = stack.enter_context(FileLock(root / "lock")).take()
        except OSError as error:
            raise CannotStart(
                f"`{root}` cannot be used ({error.strerror}); choose another with `--data-dir`"
            ) from error
        if not is_free:
            raise CannotStart(
                f"another sluicegate runs on `{root}`; stop it or choose another `--data-dir`",
                exit_code=ExitCode.BUSY,
            )
        directory = DataDirectory(root)
        if ended := process_table.end_leftovers(root):
            say(f"ended {ended} processes that a former run left behind")
        directory.remove_sockets()
        directory.folder("logs")
        # Of processes that are gone; the folder may be one that holds more.
        metrics = directory.folder("metrics")
        # The lock's age is that of the totals, which begin anew.
        for left in (*metrics.glob("*_*.db"), metrics / ".lock"):
            left.unlink(missing_ok=True)
        try:
            yield directory
        finally:
            directory.remove_sockets()
            (root / process_table.FILE).unlink(missing_ok=True)


def choose_credentials(directory: DataDirectory, *, admin_key: str, demo_key: str) -> Credentials:
    """Return the keys given, and for those that are not, one that is generated and kept.

    A generated key lies in the data directory, readable by its owner only, so that a later start
    can show it again: for the convenience of `sluicegate up`, not for production.

    Raises:
        CannotStart: a key given by hand is not 16 to 200 visible ASCII characters.
    """
    for option, key in (("--admin-key", admin_key), ("--demo-key", demo_key)):
        if key and not is_well_formed(key):
            raise CannotStart(
                f"`{option}` must be 16 to 200 visible ASCII characters",
                exit_code=ExitCode.CONFIGURATION,
            )
    return Credentials(
        admin_key=admin_key or directory.secret("admin-key", lambda: new_key("sk-admin")),
        demo_key=demo_key or directory.secret("demo-key", lambda: new_key("sk-demo")),
    )
