"""Runs PostgreSQL as a primary and a standby that copies each commit, and fails over by hand.

What a cluster manager would do is called by the test: `promote`, `fence`, `rejoin`.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg

from testing.ports import free_port
from testing.postgresql import programs
from testing.waiting import wait_until

_OWNER = "nobody"
_USER = "tests"


class PostgreSQLNode:
    """A server on a port of loopback; all its processes can be killed, stopped and continued."""

    def __init__(self, folder: Path, directory: Path) -> None:
        self.port = free_port()
        self._programs = folder
        self._directory = directory
        self._data = directory / "data"
        self._owner = _OWNER if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir()
        if self._owner is not None:
            shutil.chown(directory, self._owner)

    def initialize(self) -> None:
        """Make an empty database."""
        options = ("--username", _USER, "--auth", "trust", "--no-sync")
        self._call("initdb", "--pgdata", self._data, *options, "--locale=C", "--encoding=UTF8")

    def copy_from(self, primary: "PostgreSQLNode") -> None:
        """Make it a standby of `primary`; what it had is deleted."""
        shutil.rmtree(self._data, ignore_errors=True)
        place = f"host=127.0.0.1 port={primary.port} user={_USER} application_name=standby"
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self._call("pg_basebackup", "--pgdata", self._data, "--dbname", place, *options)

    def start(self) -> None:
        """Start it, and return when it answers."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self._data, "-p", str(self.port)),
                    *("-k", self._directory, "-c", "listen_addresses=127.0.0.1"),
                    *("-c", "fsync=off", "-c", "max_connections=200", "-c", "wal_level=replica"),
                ],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                user=self._owner,
            )
        wait_until(self._answers, what="PostgreSQL answers")

    def stop(self) -> None:
        """Stop it as an administrator does: connections end, a standby has all that was written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End all its processes as a crash would, whether they are stopped or not."""
        assert self._process is not None
        for pid in self._pids():
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop its processes: connections are accepted by the kernel, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let stopped processes go on."""
        self._signal(signal.SIGCONT)

    def promote(self) -> None:
        """Make this standby a primary, which needs no standby for its commits."""
        self._call("pg_ctl", "promote", "-D", self._data, "-w")
        self.set_synchronous(standby="")

    def set_synchronous(self, *, standby: str) -> None:
        """Let each commit wait for a standby of this name; `*` is any, and nothing is none."""
        self.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
        self.ask("SELECT pg_reload_conf()")

    def is_copied(self) -> bool:
        """Tell whether commits wait for a standby, which has all of them."""
        return self.ask("SELECT sync_state FROM pg_stat_replication") == "sync"

    def ask(self, statement: str) -> str:
        """Return the first value of the answer as text."""
        place = f"host={self._directory} port={self.port} user={_USER} dbname=postgres"
        with psycopg.connect(place, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return str(row[0]) if row else ""

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self.kill()

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            os.kill(pid, number)

    def _pids(self) -> list[int]:
        """Return its process and its children, each of which is in a session of its own."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [pid, *map(int, children.split())]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _call(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            check=True,
            capture_output=True,
            cwd=self._directory,
            user=self._owner,
        )


class PostgreSQLPair:
    """A primary and its synchronous standby while entered; `url` names both."""

    def __init__(self) -> None:
        folder = programs()
        assert folder is not None, "PostgreSQL is not installed (make install-system)"
        # Not pytest's folder: the path of a Unix socket has at most 107 characters.
        self._directory = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._directory.chmod(0o755)
        self.nodes = [PostgreSQLNode(folder, self._directory / name) for name in ("a", "b")]
        self.primary, self.standby = self.nodes

    @property
    def url(self) -> str:
        """The URL by which the gateway finds the primary."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql+psycopg://{_USER}@{hosts}/postgres"

    def __enter__(self) -> Self:
        self.primary.initialize()
        self.primary.start()
        self.rejoin()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for node in self.nodes:
            node.end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def promote(self) -> None:
        """Make the standby the primary."""
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def rejoin(self) -> None:
        """Copy the primary to the other, start it as a standby, and let commits wait for it."""
        self.standby.end()
        self.standby.copy_from(self.primary)
        self.standby.start()
        self.primary.set_synchronous(standby="*")
        wait_until(self.primary.is_copied, what="a synchronous standby")
