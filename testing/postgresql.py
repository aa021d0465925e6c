"""Runs real PostgreSQL servers: one server, or a primary with a standby that copies each commit."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg

from testing.ports import free_port
from testing.waiting import wait_until

USER = "tests"
_DEBIAN = Path("/usr/lib/postgresql")
_OWNER = "nobody" if os.geteuid() == 0 else None
"""The user that runs PostgreSQL if the tests run as root. PostgreSQL refuses to run as root."""


def programs() -> Path | None:
    """Return the folder of the programs `initdb` and `postgres`; `None` if it does not exist."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    return max(_DEBIAN.glob("*/bin"), default=None)


def new_directory() -> Path:
    """Return a new folder for servers, which every user may enter."""
    # pytest's folder has too long a path: the path of a Unix socket has at most 107 characters.
    directory = Path(tempfile.mkdtemp(prefix="postgresql-"))
    directory.chmod(0o755)
    return directory


class PostgreSQLNode:
    """A server on a Unix socket and, if `port` is set, on that port of the address `listens`.

    A test can kill, pause and resume all processes of the server.
    """

    def __init__(self, folder: Path, directory: Path, *, port: int, listens: str = "") -> None:
        self.port = port
        self.directory = directory
        self._listens = listens
        self._programs = folder
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir()
        if _OWNER is not None:
            shutil.chown(directory, _OWNER)

    def initialize(self) -> None:
        """Create an empty database cluster."""
        options = ("--username", USER, "--auth", "trust", "--no-sync")
        self.call("initdb", "--pgdata", self._data, *options, "--locale=C", "--encoding=UTF8")

    def start(self) -> None:
        """Start the server, and return when it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self._data, "-p", str(self.port)),
                    *("-k", self.directory, "-c", f"listen_addresses={self._listens}"),
                    *("-c", "fsync=off", "-c", "max_connections=200", "-c", "wal_level=replica"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                user=_OWNER,
            )
        wait_until(self._answers, what="PostgreSQL answers")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server as an administrator does.

        Its connections end, and a standby gets all written data.
        """
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Kill all processes of the server, even stopped ones, as a crash would."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None

    def end(self) -> None:
        """Kill the server if it runs."""
        if self._process is not None:
            self.kill()

    def pause(self) -> None:
        """Stop the server's processes by SIGSTOP: connections are accepted, but nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the stopped processes continue."""
        self._signal(signal.SIGCONT)

    def ask(self, statement: str) -> str:
        """Return the first value of a statement's result, as text."""
        place = f"host={self.directory} port={self.port} user={USER} dbname=postgres"
        with psycopg.connect(place, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return str(row[0]) if row else ""

    def call(self, program: str, *arguments: str | Path) -> None:
        """Run a program of PostgreSQL as the user that owns the server."""
        command = [self._programs / program, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory, user=_OWNER)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's process and its children, each in its own session."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        for each in (pid, *map(int, children.split())):
            os.kill(each, number)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text()
        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


class PostgreSQL:
    """A server on a Unix socket. Each `database()` is new and empty, and is deleted at the exit."""

    def __init__(self, folder: Path) -> None:
        self._directory = new_directory()
        self._node = PostgreSQLNode(folder, self._directory / "server", port=5432)
        self._numbers = itertools.count()
        self._url = f"postgresql+psycopg://{USER}@/postgres?host={self._node.directory}"

    def __enter__(self) -> Self:
        self._node.initialize()
        self._node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._node.stop(signal.SIGQUIT)  # end immediately, even if somebody is connected
        shutil.rmtree(self._directory, ignore_errors=True)

    def database(self) -> str:
        """Return the URL of an empty database.

        To save time, this is only a new schema.
        """
        name = f"test_{next(self._numbers)}"
        self._node.ask(f"CREATE SCHEMA {name}")
        return f"{self._url}&options=-csearch_path%3D{name}"

    def ascii_database(self) -> str:
        """Return the URL of an empty database whose encoding, `SQL_ASCII`, accepts any bytes."""
        self._node.ask(
            "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0"
        )
        return self._url.replace("/postgres?", "/ascii?")

    def socket(self) -> str:
        """Return the path of the server's Unix socket."""
        return str(self._node.directory / ".s.PGSQL.5432")


class PostgreSQLPair:
    """A primary and its synchronous standby, which run while entered; `url` names both.

    The test has the role of the cluster manager: it calls `promote` and `rejoin`.
    """

    def __init__(self) -> None:
        folder = programs()
        assert folder is not None, "PostgreSQL is not installed (make install-system)"
        self._directory = new_directory()
        self.nodes = [
            PostgreSQLNode(folder, self._directory / name, port=free_port(), listens="127.0.0.1")
            for name in ("a", "b")
        ]
        self.primary, self.standby = self.nodes

    @property
    def url(self) -> str:
        """The URL by which the gateway finds the primary."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql+psycopg://{USER}@{hosts}/postgres"

    def __enter__(self) -> Self:
        self.primary.initialize()
        self.primary.start()
        self.rejoin()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def promote(self) -> None:
        """Make the standby the primary. Commits then wait for no standby."""
        data = self.standby.directory / "data"
        self.standby.call("pg_ctl", "promote", "-D", data, "-w")
        self.primary, self.standby = self.standby, self.primary
        self._wait_for_standby("")

    def rejoin(self) -> None:
        """Make the former primary a standby of the new primary; commits then wait for it."""
        self.standby.end()
        data = self.standby.directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        place = f"host=127.0.0.1 port={self.primary.port} user={USER} application_name=standby"
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self.standby.call("pg_basebackup", "--pgdata", data, "--dbname", place, *options)
        self.standby.start()
        self._wait_for_standby("*")
        wait_until(self._is_copied, what="a synchronous standby")

    def _wait_for_standby(self, name: str) -> None:
        """Make each commit wait for the standby `name`; `*` means any standby, "" means none."""
        self.primary.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self.primary.ask("SELECT pg_reload_conf()")

    def _is_copied(self) -> bool:
        """Return whether the standby has all commits, and new commits wait for it."""
        return self.primary.ask("SELECT sync_state FROM pg_stat_replication") == "sync"
