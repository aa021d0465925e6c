"""Does to a ledger what programs of schema 9 do, which know no sums of hours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy
from sqlalchemy import Connection, literal, select

from gateway.ledger import schema
from gateway.ledger.event_rows import row_of
from gateway.ledger.migrations import MIGRATIONS
from gateway.ledger.usage_fields import SUMMED
from gateway.ledger.usage_marks import HOUR
from gateway.types import RequestEvent

_KIND: Final = ("tenant", "key", "model", "task", "status", "region", "revision", "code", "batch")
_COLUMNS: Final = ("id", "time", *_KIND, *SUMMED)
_INDEXES: Final = {
    "usage_events.is_summed": "usage_events_not_summed",
    "usage_events.client_id": "usage_events_client_id",
}
_events: Final = schema.usage_events


@contextmanager
def connected(database: str) -> Iterator[Connection]:
    """Open a transaction behind the ledger's back."""
    engine = sqlalchemy.create_engine(database)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def take_back(connection: Connection, version: int) -> None:
    """Remove the columns that were added after the schema's `version`."""
    added = [place for each in MIGRATIONS if each.version > version for place in each.columns]
    for column, index in _INDEXES.items():
        if column in added:
            connection.exec_driver_sql(f"DROP INDEX {index}")
    for table, column in (place.split(".") for place in added):
        connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
    applied = schema.schema_migrations
    connection.execute(applied.delete().where(applied.c.version > version))


def take_back_to_schema_9(connection: Connection) -> None:
    """Remove what later schemas added."""
    schema.usage_hours.drop(connection)
    take_back(connection, 9)
    connection.exec_driver_sql("DELETE FROM usage_rollups WHERE subject = 'usage.kept_hours'")


def record_as_schema_9(database: str, event: RequestEvent) -> None:
    """Record an event without a sum, and set back the marks of late events."""
    row = {name: value for name, value in row_of(event).items() if name in _COLUMNS}
    marks = schema.usage_rollups
    hour = event.time - event.time % HOUR
    late = marks.c.subject.in_(["usage.hours", "usage.days"]) & (marks.c.until > hour)
    with connected(database) as connection:
        connection.execute(marks.update().where(late).values(until=hour))
        connection.execute(_events.insert(), row)


def roll_up_as_schema_9(database: str, hour: int) -> None:
    """Add up the rows of an hour, those that are in sums of hours, too."""
    of_hour = (_events.c.time >= hour * HOUR) & (_events.c.time < (hour + 1) * HOUR)
    new = of_hour & ~_events.c.id.startswith("rollup-")
    sums = [_events.c[name] for name in SUMMED]
    with connected(database) as connection:
        for row in connection.execute(select(_events).where(new)).mappings().all():
            kind = tuple(row[name] for name in _KIND)
            own = _events.c.id == literal(f"rollup-{hour * HOUR // 10**9}-{hash(kind):x}")
            added = {c: c + row[c.name] for c in sums}
            if not connection.execute(_events.update().where(own).values(added)).rowcount:
                values = {c.name: row[c.name] for c in sums} | dict(zip(_KIND, kind, strict=True))
                values |= {"id": own.right.value, "time": hour * HOUR}
                connection.execute(_events.insert(), values)
            connection.execute(_events.delete().where(_events.c.id == row["id"]))
