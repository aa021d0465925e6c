"""Runs a real PostgreSQL server on a Unix socket in a folder of its own."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy
from sqlalchemy import exc

from testing.waiting import wait_until

_DEBIAN = Path("/usr/lib/postgresql")
_OWNER = "nobody"
"""Who runs it where the tests run as root, whom PostgreSQL refuses."""


def programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`, or `None` where they are not installed."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    return max(_DEBIAN.glob("*/bin"), default=None)


class PostgreSQL:
    """A server; each `database()` is new and empty. What it wrote is deleted at the exit."""

    def __init__(self, folder: Path) -> None:
        self._programs = folder
        # Not pytest's folder: the path of a Unix socket has at most 107 characters.
        self._directory = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._owner = _OWNER if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()
        self._url = f"postgresql+psycopg://tests@/postgres?host={self._directory}"

    def __enter__(self) -> Self:
        if self._owner is not None:
            shutil.chown(self._directory, self._owner)
        subprocess.run(
            [
                *(self._programs / "initdb", "--pgdata", self._directory / "data"),
                *("--username", "tests", "--auth", "trust", "--no-sync"),
                *("--locale", "C", "--encoding", "UTF8"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            user=self._owner,
        )
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self._directory / "data"),
                    *("-k", self._directory, "-c", "listen_addresses="),
                    *("-c", "fsync=off", "-c", "max_connections=50"),
                ],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                user=self._owner,
            )
        wait_until(self._answers, within=60, what="PostgreSQL answers")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # at once, whoever is connected
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def database(self) -> str:
        """Return the URL of an empty database: a schema of its own."""
        name = f"test_{next(self._numbers)}"
        self._run(f"CREATE SCHEMA {name}")
        return f"{self._url}&options=-csearch_path%3D{name}"

    def ascii_database(self) -> str:
        """Return the URL of an empty database that does not keep text as text."""
        self._run(
            "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0"
        )
        return self._url.replace("/postgres?", "/ascii?")

    def socket(self) -> str:
        """Return the path of its Unix socket."""
        return str(self._directory / ".s.PGSQL.5432")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            self._run("SELECT 1")
        except exc.OperationalError:
            return False
        return True

    def _run(self, statement: str) -> None:
        engine = sqlalchemy.create_engine(self._url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql(statement)
        finally:
            engine.dispose()
