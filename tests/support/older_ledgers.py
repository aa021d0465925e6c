"""Does to a ledger what programs of schema 10 do, which know no totals."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy
from sqlalchemy import Connection, select

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


def take_back_to_schema_10(connection: Connection) -> None:
    """Remove what later schemas added. Rows then look as if schema 10 had summed them by hour."""
    schema.usage_totals.drop(connection)
    connection.exec_driver_sql("DROP INDEX usage_events_outside_totals")
    connection.exec_driver_sql("UPDATE usage_events SET is_summed = 1")
    connection.exec_driver_sql("DELETE FROM usage_rollups WHERE subject = 'usage.blocks'")
    connection.exec_driver_sql(
        "UPDATE usage_rollups SET until = 0 WHERE subject = 'usage.kept_hours'"
    )
    connection.exec_driver_sql("DELETE FROM schema_migrations WHERE version > 10")


def record_as_schema_10(database: str, event: RequestEvent, *, is_summed: int = 1) -> None:
    """Record an event, and set back the marks of late events.

    Programs before schema 10 set `is_summed` to 0, and the roll-up of schema 10 sets it to 1 later.
    """
    marks = schema.usage_rollups
    hour = event.time - event.time % HOUR
    late = marks.c.subject.in_(["usage.hours", "usage.days"]) & (marks.c.until > hour)
    with connected(database) as connection:
        connection.execute(marks.update().where(late).values(until=hour))
        connection.execute(_events.insert(), row_of(event) | {"is_summed": is_summed})


def roll_up_as_schema_10(database: str, hour: int) -> None:
    """Add up the rows of an hour, those of each value of `is_summed` in a row of their own."""
    of_hour = (_events.c.time >= hour * HOUR) & (_events.c.time < (hour + 1) * HOUR)
    new = of_hour & ~_events.c.id.startswith("rollup-")
    sums = [c for c in _events.columns if c.name not in ("id", "time", "is_summed", *_KIND)]
    with connected(database) as connection:
        for row in connection.execute(select(_events).where(new)).mappings().all():
            kind: tuple[object, ...] = tuple(row[name] for name in _KIND)
            values = dict(zip(_KIND, kind, strict=True)) | {"is_summed": row["is_summed"]}
            if row["is_summed"]:
                kind = (*kind, row["is_summed"])
            digest = hashlib.blake2b(repr(kind).encode(), digest_size=16).hexdigest()
            values |= {"id": f"rollup-{hour * HOUR // 10**9}-{digest}", "time": hour * HOUR}
            own = _events.c.id == values["id"]
            added = {c: c + row[c.name] for c in sums}
            if not connection.execute(_events.update().where(own).values(added)).rowcount:
                values |= {c.name: row[c.name] for c in sums}
                connection.execute(_events.insert(), values)
            connection.execute(_events.delete().where(_events.c.id == row["id"]))


def sum_hours_as_schema_10(database: str) -> None:
    """Mark all rows as summed by hour, and give sums of the roll-up new ids."""
    own = _events.c.is_summed == 0
    is_sum = _events.c.id.startswith("rollup-")
    with connected(database) as connection:
        renamed = sqlalchemy.case((is_sum, _events.c.id + "-again"), else_=_events.c.id)
        connection.execute(_events.update().where(own).values(id=renamed, is_summed=1))
