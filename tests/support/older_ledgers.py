"""Does to a ledger what programs of schema 9 do, which know no sums of hours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy
from sqlalchemy import Connection, literal, select

from gateway.ledger import schema
from gateway.ledger.event_rows import row_of
from gateway.ledger.usage_marks import HOUR
from gateway.types import RequestEvent

_KIND: Final = ("tenant", "key", "model", "task", "status", "region", "revision", "code", "batch")
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


def take_back_to_schema_9(connection: Connection) -> None:
    """Remove what schema 10 added."""
    schema.usage_hours.drop(connection)
    connection.exec_driver_sql("DROP INDEX usage_events_not_summed")
    connection.exec_driver_sql("ALTER TABLE usage_events DROP COLUMN is_summed")
    connection.exec_driver_sql("DELETE FROM usage_rollups WHERE subject = 'usage.kept_hours'")
    connection.exec_driver_sql("DELETE FROM schema_migrations WHERE version > 9")


def record_as_schema_9(database: str, event: RequestEvent) -> None:
    """Record an event without a sum, and set back the marks of late events."""
    row = row_of(event)
    del row["is_summed"]
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
    sums = [c for c in _events.columns if c.name not in ("id", "time", "is_summed", *_KIND)]
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
