"""Runs PostgreSQL as a primary and a standby that copies each commit.

The test has the role of the cluster manager: it calls `promote` and `rejoin`.
"""

import shutil
from typing import Self

from testing.ports import free_port
from testing.postgresql import USER, PostgreSQLNode, new_directory, programs
from testing.waiting import wait_until


class PostgreSQLPair:
    """A primary and its synchronous standby, which run while entered; `url` names both."""

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
