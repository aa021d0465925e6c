"""Backs up a ledger in SQLite while it is in use."""

import contextlib
import os
import sqlite3
from pathlib import Path

from gateway.errors import ConfigurationError, DependencyUnavailable
from gateway.ledger.postgresql import parse_url


def back_up(url: str, target: Path) -> None:
    """Write a copy of the ledger to `target`, which must not exist; blocks.

    Other processes do not wait. The copy appears under its name when it is complete and checked.

    Raises:
        ConfigurationError: the ledger is no SQLite file, or `target` exists.
        DependencyUnavailable: it cannot be read, or the copy cannot be written.
    """
    source = parse_url(url)
    if source.get_backend_name() != "sqlite" or not source.database:
        raise ConfigurationError(
            f"the ledger is in {source.get_backend_name()}; back it up with that database's own"
            " program, such as `pg_dump`"
        )
    if target.exists():
        raise ConfigurationError(f"`{target}` exists; name a file that does not")
    partial = target.with_name(f".{target.name}.partial")
    try:
        _copy(Path(source.database), partial)
        partial.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise DependencyUnavailable(f"the ledger was not backed up: {error}") from error
    finally:
        with contextlib.suppress(OSError):  # the cause was reported above
            partial.unlink()


def _copy(source: Path, target: Path) -> None:
    # Readable for the owner only from the beginning, as it holds hashes of keys.
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    with (
        contextlib.closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        ) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        # In one step, as a copy in steps restarts at each write. The write-ahead log lets
        # others write meanwhile.
        old.backup(new)
        (result,) = new.execute("PRAGMA integrity_check").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {result}")
