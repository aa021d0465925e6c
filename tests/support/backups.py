"""Backs up and restores a ledger as the documentation tells operators to."""

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, make_url

from testing.postgresql import programs


def back_up(url: str, directory: Path) -> Callable[[], None]:
    """Back up the ledger at `url` into `directory`; return what restores it."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _back_up_sqlite(str(parsed.database), directory / "backup.db")
    return _back_up_postgresql(parsed, directory / "backup.dump")


def _back_up_sqlite(live: str, copy: Path) -> Callable[[], None]:
    def copy_all(source: str, target: str) -> None:
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
            one.backup(other)

    copy_all(live, str(copy))
    return lambda: copy_all(str(copy), live)


def _back_up_postgresql(url: URL, dump: Path) -> Callable[[], None]:
    folder = programs()
    assert folder is not None
    schema = str(url.query["options"]).rpartition("=")[2]
    where = ("--host", str(url.query["host"]), "--username", str(url.username))

    def run(program: str, *arguments: str) -> None:
        subprocess.run([str(folder / program), *where, *arguments], check=True)

    database = str(url.database)
    run("pg_dump", "--schema", schema, "--format", "custom", "--file", str(dump), database)

    def restore() -> None:
        drop = f"DROP SCHEMA {schema} CASCADE"
        run("psql", "--quiet", "--command", drop, database)
        run("pg_restore", "--dbname", database, str(dump))

    return restore
