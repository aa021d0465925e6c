"""Migrates the ledger's tables to this program's schema, while older programs keep running.

A change of the schema takes two releases ("expand and contract"). The first release adds tables, or
columns with a default value. Older programs ignore the additions, so `compatible_from` does not
change. A later release removes tables or columns that no supported program uses, and raises
`compatible_from`. `MIGRATIONS` does not list new tables, because `schema.metadata` creates them.
The fields and the numbers of usage events say themselves which version adds their columns.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import sqlalchemy
from sqlalchemy import Connection, Table, func, select
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger import schema, usage_marks
from sluicegate.gateway.ledger.usage_fields import ADDED_UNITS, FIELDS

InsertNew = Callable[[Connection, Table, list[dict[str, Any]]], int]
"""Inserts the rows whose primary keys are new, like `Store.insert_new`."""


class LedgerEmpty(DependencyUnavailable):
    """The database has no ledger. Either it was emptied, or no ledger was ever created."""


class Migration(NamedTuple):
    """Adds the columns that are new in the schema's `version`.

    After the migration, programs made for version `compatible_from` or later can use the tables.
    """

    version: int
    compatible_from: int
    columns: tuple[str, ...] = ()
    """The new columns, as `table.column`."""
    statements: tuple[str, ...] = ()
    """Change data of the former version."""


def _with_usage(listed: Sequence[Migration]) -> tuple[Migration, ...]:
    """Return the `listed` migrations, and those that add columns of usage events."""
    added = [(f"usage_events.{name}", field.since) for name, field in FIELDS.items() if field.since]
    tables = ("usage_events", "usage_totals")
    added += [(f"{table}.{name}", since) for name, since in ADDED_UNITS.items() for table in tables]
    found = {migration.version: migration for migration in listed}
    for column, since in added:
        # An added column changes nothing for older programs.
        before = [each for each in listed if each.version < since]
        new = Migration(version=since, compatible_from=before[-1].compatible_from)
        former = found.get(since, new)
        found[since] = former._replace(columns=(*former.columns, column))
    return tuple(found[version] for version in sorted(found))


MIGRATIONS: Final = _with_usage(
    (
        Migration(version=2, compatible_from=2, columns=("usage_events.requests",)),
        # Adds `schema_migrations`, `published_prices`, `published_documents`, `drained_backends`
        # and `usage_rollups`.
        Migration(version=3, compatible_from=2),
        # Adds `arm_usage` and `serving_plans`.
        Migration(version=4, compatible_from=2),
        # Adds `files`, `batches` and `webhook_deliveries`.
        Migration(
            version=5,
            compatible_from=2,
            columns=("prices.batch_percent", "published_prices.batch_percent"),
        ),
        Migration(
            version=6,
            compatible_from=2,
            columns=("keys.origins", "keys.routes", "keys.former_hash", "keys.former_expires"),
        ),
        # Adds `account_changes` and `budget_alerts`.
        Migration(
            version=7, compatible_from=2, columns=("tenants.budget", "tenants.exhausted_until")
        ),
        # Adds `operators`.
        Migration(version=8, compatible_from=2),
        # Adds `usage_sums`, which the roll-up fills in steps.
        Migration(version=9, compatible_from=2),
        # Adds `usage_hours`. Billing adds to it; the roll-up fills in the hours before the
        # migration.
        Migration(version=10, compatible_from=2, columns=("usage_events.is_summed",)),
        # Adds `usage_totals`, to which the roll-up adds the rows of older programs in steps.
        # Programs of schema 10 no longer use `usage_hours`.
        Migration(version=12, compatible_from=10, statements=usage_marks.START_TOTALS),
    )
)
VERSION: Final = MIGRATIONS[-1].version
EMPTY: Final = (
    "the ledger is empty: restore it from a backup, or create a new one with"
    " `sluicegate ledger init`"
)


def is_current(connection: Connection) -> bool:
    """Return whether this program can use the tables without a migration. The check only reads.

    Raises:
        LedgerEmpty: there are no tables.
        DependencyUnavailable: the tables have a newer version that this program cannot use.
    """
    tables = _tables(connection)
    newest = _newest(connection, tables)
    if newest is None:
        raise _empty(tables)
    if newest > VERSION:
        _check_compatible(connection, newest)
        return True
    has_tables = newest == VERSION and tables >= set(schema.metadata.tables)
    return has_tables and not usage_marks.are_missing(connection)


def has_later_schema(connection: Connection) -> bool:
    """Return whether a later program has migrated the tables. The check only reads."""
    newest = connection.scalar(select(func.max(schema.schema_migrations.c.version)))
    return newest is not None and newest > VERSION


def add_columns(connection: Connection) -> None:
    """In the caller's transaction, add the columns that the tables of an older program lack.

    The transaction must end before `migrate`, which creates indexes: PostgreSQL lets nobody read a
    table from the addition of a column until the commit, but it does while it creates an index.
    """
    tables = _tables(connection)
    newest = _newest(connection, tables)
    if newest is None:
        return
    inspector = sqlalchemy.inspect(connection)
    added = [place for each in MIGRATIONS if each.version > newest for place in each.columns]
    for table, column in (place.split(".") for place in added):
        # A migration may have been interrupted after this step.
        if table in tables and column not in {c["name"] for c in inspector.get_columns(table)}:
            new = CreateColumn(schema.metadata.tables[table].c[column])
            definition = new.compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {definition}")


def migrate(
    connection: Connection, *, insert_new: InsertNew, now: int, creates: bool = False
) -> None:
    """In the caller's transaction, migrate older tables, which have all columns already.

    With `creates`, create the tables if there are none.

    Raises:
        LedgerEmpty: there are no tables, and `creates` is not set.
        DependencyUnavailable: the tables have a newer version that this program cannot use.
    """
    existing = _tables(connection)
    found = _newest(connection, existing)
    if found is None and (existing or not creates):
        raise _empty(existing)
    if found is not None and found > VERSION:
        _check_compatible(connection, found)
        return
    tables, indexes = _definitions(connection.dialect.name)
    for statement in tables:
        connection.exec_driver_sql(statement)
    for statement in [] if found is None else _changes_of_data(connection, found):
        connection.exec_driver_sql(statement)
    for migration in MIGRATIONS:
        row = {"version": migration.version, "compatible_from": migration.compatible_from}
        # A new ledger records the time 0, because no older program uses it.
        applied = {"applied": 0 if found is None else now}
        insert_new(connection, schema.schema_migrations, [row | applied])
    for statement in indexes:
        connection.exec_driver_sql(statement)
    insert_new(connection, schema.usage_rollups, usage_marks.initial(now))
    # Programs of schema version 2 read only this table, and accept only their own version.
    legacy = MIGRATIONS[-1].compatible_from
    insert_new(connection, schema.schema_version, [{"version": legacy}])


def _changes_of_data(connection: Connection, found: int) -> list[str]:
    """Return the statements that change the data of a ledger with the schema `found`.

    Raises:
        DependencyUnavailable: another transaction still records events.
    """
    if found == VERSION and usage_marks.are_missing(connection):
        # Somebody deleted marks. Without them, nothing says which totals exist.
        if not usage_marks.hold_recorders(connection):
            raise DependencyUnavailable("events are being recorded", retry_after=1.0)
        return [*usage_marks.RESTART_TOTALS]
    return [each for one in MIGRATIONS if one.version > found for each in one.statements]


@cache
def _definitions(database: str) -> tuple[list[str], list[str]]:
    """Return the statements that create the tables, and those that create their indexes.

    The statements are compiled only once for each kind of database, because compiling them takes
    longer than executing them.
    """
    dialect = sqlalchemy.make_url(f"{database}://").get_dialect()()
    tables = schema.metadata.sorted_tables
    indexes = [index for table in tables for index in table.indexes]
    return (
        [str(CreateTable(each, if_not_exists=True).compile(dialect=dialect)) for each in tables],
        [str(CreateIndex(each, if_not_exists=True).compile(dialect=dialect)) for each in indexes],
    )


def _tables(connection: Connection) -> set[str]:
    """Return the names of the ledger's tables; the database can hold other tables, too."""
    found = sqlalchemy.inspect(connection).get_table_names()
    return set(found) & set(schema.metadata.tables)


def _newest(connection: Connection, tables: set[str]) -> int | None:
    """Return the recorded schema version of the tables, or `None` if no version is recorded."""
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
        "the ledger has tables but no version, as during a restore: wait until the restore ends,"
        " or restore it again"
    )


def _check_compatible(connection: Connection, newest: int) -> None:
    oldest = connection.scalar(select(func.max(schema.schema_migrations.c.compatible_from)))
    if oldest is None or oldest > VERSION:
        raise DependencyUnavailable(
            f"the ledger has schema {newest}, but this program knows only {VERSION}: update the"
            " program"
        )
