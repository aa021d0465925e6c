"""Migrates the ledger's tables to this program's schema, while programs of the former one run.

A change takes two releases. The first one expands: it adds tables, or columns with a default, which
programs of the former version ignore; `compatible_from` lists these as compatible. A later one
contracts: it removes what no supported program uses, and raises `compatible_from`. A new table
needs no statement, as `schema.metadata` creates it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import sqlalchemy
from sqlalchemy import Connection, Table, func, select
from sqlalchemy.schema import CreateIndex, CreateTable

from gateway.errors import DependencyUnavailable
from gateway.ledger import schema, usage_marks

InsertNew = Callable[[Connection, Table, list[dict[str, Any]]], int]
"""Inserts the rows whose keys are not there yet; see `Store.insert_new`."""


class LedgerEmpty(DependencyUnavailable):
    """The SQL store has no ledger: it was emptied, or `sluicegate ledger init` never ran."""


class Migration(NamedTuple):
    """Holds the columns that migrate the tables of the former version to `version`.

    Programs of the versions from `compatible_from` on may use the tables afterwards.
    """

    version: int
    compatible_from: int
    columns: tuple[tuple[str, str], ...] = ()
    """The tables that get a column, and its definition."""


MIGRATIONS: Final = (
    Migration(
        version=2,
        compatible_from=2,
        columns=(("usage_events", "requests BIGINT NOT NULL DEFAULT 1"),),
    ),
    # Adds `schema_migrations`, `published_prices`, `published_documents`, `drained_backends` and
    # `usage_rollups`.
    Migration(version=3, compatible_from=2),
    # Adds `arm_usage` and `serving_plans`.
    Migration(version=4, compatible_from=2),
    # Adds `files`, `batches` and `webhook_deliveries`.
    Migration(
        version=5,
        compatible_from=2,
        columns=(
            ("usage_events", "batch BIGINT NOT NULL DEFAULT 0"),
            ("prices", "batch_percent BIGINT NOT NULL DEFAULT 100"),
            ("published_prices", "batch_percent BIGINT NOT NULL DEFAULT 100"),
        ),
    ),
    Migration(
        version=6,
        compatible_from=2,
        columns=(
            ("keys", "origins TEXT"),
            ("keys", "routes TEXT"),
            ("keys", "former_hash VARCHAR(128)"),
            ("keys", "former_expires BIGINT"),
        ),
    ),
    # Adds `account_changes` and `budget_alerts`.
    Migration(
        version=7,
        compatible_from=2,
        columns=(("tenants", "budget TEXT"), ("tenants", "exhausted_until BIGINT")),
    ),
    # Adds `operators`.
    Migration(version=8, compatible_from=2),
    # Adds `usage_sums`, which the roll-up fills in steps.
    Migration(version=9, compatible_from=2),
    # Adds `usage_hours`, to which whoever records adds; the roll-up fills in hours from before.
    Migration(
        version=10,
        compatible_from=2,
        columns=(("usage_events", "is_summed INTEGER NOT NULL DEFAULT 0"),),
    ),
)
VERSION: Final = MIGRATIONS[-1].version
EMPTY: Final = (
    "the ledger is empty: restore it from a backup, or create a new one with"
    " `sluicegate ledger init`"
)


def is_current(connection: Connection) -> bool:
    """Tell whether the tables are up to date; only reads.

    Raises:
        LedgerEmpty: there are no tables.
        DependencyUnavailable: the tables are of a version that this program must not use.
    """
    tables = _tables(connection)
    newest = _newest(connection, tables)
    if newest is None:
        raise _empty(tables)
    if newest > VERSION:
        _check_compatible(connection, newest)
        return True
    return newest == VERSION and tables >= set(schema.metadata.tables)


def migrate(
    connection: Connection, *, insert_new: InsertNew, now: int, creates: bool = False
) -> None:
    """Migrate older tables, or create them where there are none, in the caller's transaction.

    Raises:
        LedgerEmpty: there are no tables, and `creates` is not set.
        DependencyUnavailable: the tables are of a version that this program must not use.
    """
    existing = _tables(connection)
    found = _newest(connection, existing)
    if found is None and (existing or not creates):
        raise _empty(existing)
    if found is not None and found > VERSION:
        _check_compatible(connection, found)
        return
    for table in schema.metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
    for migration in MIGRATIONS:
        if found is not None and migration.version > found:
            _add_columns(connection, migration, existing)
        row = {"version": migration.version, "compatible_from": migration.compatible_from}
        # No program of the former version uses a new ledger.
        applied = {"applied": 0 if found is None else now}
        insert_new(connection, schema.schema_migrations, [row | applied])
    for table in schema.metadata.sorted_tables:
        for index in table.indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))
    insert_new(connection, schema.usage_rollups, list(usage_marks.INITIAL))
    # Programs of version 2 use the tables if this is the highest row.
    legacy = MIGRATIONS[-1].compatible_from
    insert_new(connection, schema.schema_version, [{"version": legacy}])


def _add_columns(connection: Connection, migration: Migration, existing: set[str]) -> None:
    for name, column in migration.columns:
        if name in existing:  # one that was created now has it
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {column}")


def _tables(connection: Connection) -> set[str]:
    """Return the names of the ledger's tables; others may be beside them."""
    found = sqlalchemy.inspect(connection).get_table_names()
    return set(found) & set(schema.metadata.tables)


def _newest(connection: Connection, tables: set[str]) -> int | None:
    """Return the version of `tables`, `None` where none is recorded."""
    for table in (schema.schema_migrations, schema.schema_version):
        if table.name in tables:
            newest = connection.scalar(select(func.max(table.c.version)))
            if newest is not None:
                return int(newest)
    return None


def _empty(tables: set[str]) -> DependencyUnavailable:
    if not tables:
        return LedgerEmpty(EMPTY)
    return LedgerEmpty(
        "the ledger has tables without a version: wait until its restore ends, or restore it again"
    )


def _check_compatible(connection: Connection, newest: int) -> None:
    oldest = connection.scalar(select(func.max(schema.schema_migrations.c.compatible_from)))
    if oldest is None or oldest > VERSION:
        raise DependencyUnavailable(
            f"the ledger has schema {newest}, this program knows {VERSION}: update it"
        )
