"""Opens the data directory of a supervisor: its lock, secrets, logs and sockets."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from sluicegate.gateway.app.secret import kept_secret
from sluicegate.gateway.auth.keys import is_well_formed, new_key
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor import process_table
from sluicegate.gateway.supervisor.errors import CannotStart, ExitCode
from sluicegate.gateway.workers.file_lock import FileLock

# The path of a Unix socket has at most 107 bytes on Linux, and 103 on other systems.
_LONGEST_SOCKET_FOLDER = 85
_ELSEWHERE = "sockets"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the admin key and the demo key in plain text, so that the start can print them."""

    admin_key: str
    demo_key: str


class DataDirectory:
    """Holds the paths in the data directory `root`, which this process has locked.

    `root` is an absolute path.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self.placement = root / "placement.yaml"

    def secret(self, name: str, make: Callable[[], str] = secrets.token_urlsafe) -> str:
        """Return the secret in the file `name`, which only its owner can read.

        If the file is missing, `make` makes the secret.
        """
        return kept_secret(self.root / name, make)

    def settings_of_children(self, settings: Settings) -> Settings:
        """Return `settings` for child processes that use this directory, without the admin key."""
        return msgspec.structs.replace(
            settings,
            data_dir=self.root,
            config=settings.config.absolute(),
            secret=settings.secret or self.secret("secret"),
            admin_key="",
            listen_fd=None,
        )

    def folder(self, name: str) -> Path:
        """Return a folder below the root. Create it if it does not exist."""
        path = self.root / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def sockets(self) -> Path:
        """Return the folder for Unix sockets.

        The folder is below the root, unless its path would be too long for a socket. It is then a
        temporary folder.
        """
        inside = self.root / "run"
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET_FOLDER:
            return self.folder("run")
        elsewhere = Path(tempfile.mkdtemp(prefix="sluicegate-"))  # mode 0700
        (self.root / _ELSEWHERE).write_text(str(elsewhere))
        return elsewhere

    def remove_sockets(self) -> None:
        """Remove the temporary folder for sockets, if there is one."""
        record = self.root / _ELSEWHERE
        with contextlib.suppress(FileNotFoundError):
            folder = Path(record.read_text())
            if folder.name.startswith("sluicegate-"):
                shutil.rmtree(folder, ignore_errors=True)
            record.unlink()


@contextlib.contextmanager
def open_directory(root: Path, say: Callable[[str], None]) -> Iterator[DataDirectory]:
    """Lock `root` for this process, and end the processes that a killed supervisor left running.

    Raises:
        CannotStart: another process has locked the directory, or it is not writable.
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
                f"another sluicegate uses `{root}`; stop it or choose another `--data-dir`",
                exit_code=ExitCode.BUSY,
            )
        directory = DataDirectory(root)
        if ended := process_table.end_leftovers(root):
            say(f"ended {ended} processes that a former run left behind")
        directory.remove_sockets()
        directory.folder("logs")
        # The metric files that are deleted next belong to processes that have ended. All other
        # files in the folder are kept.
        metrics = directory.folder("metrics")
        # Counters start again at 0. The lock file is deleted, too, because its age says when the
        # counters began.
        for left in (*metrics.glob("*_*.db"), metrics / ".lock"):
            left.unlink(missing_ok=True)
        try:
            yield directory
        finally:
            directory.remove_sockets()
            (root / process_table.FILE).unlink(missing_ok=True)


def choose_credentials(directory: DataDirectory, *, admin_key: str, demo_key: str) -> Credentials:
    """Return the admin key and the demo key, and generate each key that is not given.

    A generated key is stored in a file, and later starts use it again. Only the owner of the data
    directory can read the file. Stored keys are not meant for production.

    Raises:
        CannotStart: a given key is not 16 to 200 visible ASCII characters.
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
