"""Backs up a ledger in SQLite while it is in use."""

import contextlib
import os
import sqlite3
from pathlib import Path

from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable
from sluicegate.gateway.ledger.postgresql import parse_url


def back_up(url: str, target: Path) -> None:
    """Write a copy of the ledger to a new file `target`. The call blocks.

    During the backup, other processes can write to the ledger. `target` appears only when the copy
    is complete and has passed SQLite's integrity check.

    Raises:
        ConfigurationError: the ledger is not a SQLite file, or `target` exists.
        DependencyUnavailable: the ledger cannot be read, or the copy cannot be written.
    """
    source = parse_url(url)
    if source.get_backend_name() != "sqlite" or not source.database:
        raise ConfigurationError(
            f"the ledger is in {source.get_backend_name()}; back it up with that database's own"
            " program, such as `pg_dump`"
        )
    if target.exists():
        raise ConfigurationError(f"`{target}` exists; name a file that does not exist yet")
    partial = target.with_name(f".{target.name}.partial")
    try:
        _copy(Path(source.database), partial)
        partial.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise DependencyUnavailable(f"the ledger was not backed up: {error}") from error
    finally:
        with contextlib.suppress(OSError):  # the original error was reported above
            partial.unlink()


def _copy(source: Path, target: Path) -> None:
    # Only the owner can ever read the copy, because it contains hashes of secrets.
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    with (
        contextlib.closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        ) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        # Copies all pages in one step, because SQLite restarts a stepwise backup after every write.
        old.backup(new)
        (result,) = new.execute("PRAGMA integrity_check").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {result}")
