"""Copies a ledger in SQLite while it is used."""

import contextlib
import os
import sqlite3
from pathlib import Path

from sqlalchemy import make_url

from gateway.errors import ConfigurationError, DependencyUnavailable


def back_up(url: str, target: Path) -> None:
    """Write the ledger as it is now to `target`, which is not there yet; blocks.

    Nobody waits for it. The copy appears under its name when it is complete and was checked.

    Raises:
        ConfigurationError: the ledger is no SQLite file, or `target` exists.
        DependencyUnavailable: it cannot be read, or the copy cannot be written.
    """
    source = make_url(url)
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
        with contextlib.suppress(OSError):  # what kept it from being written is said already
            partial.unlink()


def _copy(source: Path, target: Path) -> None:
    # For the owner's eyes from the beginning: hashes of keys are in it.
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    with (
        contextlib.closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        ) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        # All at once: in steps it begins anew with each write. The ledger keeps a write-ahead log,
        # so nobody who writes waits for one who reads.
        old.backup(new)
        (result,) = new.execute("PRAGMA integrity_check").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {result}")
