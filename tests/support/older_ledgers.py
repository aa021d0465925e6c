"""Does to a ledger what programs of schema 10 do, which know no totals."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy
from sqlalchemy import Connection, select

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.event_rows import row_of
from sluicegate.gateway.ledger.migrations import MIGRATIONS
from sluicegate.gateway.ledger.usage_fields import ADDED_UNITS, SUMMED
from sluicegate.gateway.ledger.usage_marks import HOUR
from sluicegate.gateway.types import RequestEvent

_KIND: Final = ("tenant", "key", "model", "task", "status", "region", "revision", "code", "batch")
_SUMMED: Final = [name for name in SUMMED if name not in ADDED_UNITS]
_COLUMNS: Final = ("id", "time", *_KIND, *_SUMMED)
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


def take_back(connection: Connection, version: int, *, keeps_totals: bool = False) -> None:
    """Remove what was added after the schema's `version`, which is at most 11.

    Rows then look as if schema 10 had summed them by hour. With `keeps_totals`, the table of totals
    stays as it is, as when a backup is restored over a newer ledger.
    """
    connection.exec_driver_sql("UPDATE usage_events SET is_summed = 1")
    if not keeps_totals:
        schema.usage_totals.drop(connection)
    marks = schema.usage_rollups
    connection.execute(marks.delete().where(marks.c.subject == "usage.blocks"))
    kept_hours = marks.update().where(marks.c.subject == "usage.kept_hours")
    connection.execute(kept_hours.values(until=0))
    added = [place for each in MIGRATIONS if each.version > version for place in each.columns]
    connection.exec_driver_sql("DROP INDEX usage_events_outside_totals")
    if "usage_events.is_summed" in added:
        connection.exec_driver_sql("DROP INDEX usage_events_not_summed")
    if "usage_events.client_id" in added:
        connection.exec_driver_sql("DROP INDEX usage_events_client_id")
    for table, column in (place.split(".") for place in added):
        if table == schema.usage_totals.name:
            continue
        connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
    applied = schema.schema_migrations
    connection.execute(applied.delete().where(applied.c.version > version))


def record_as_schema_10(database: str, event: RequestEvent, *, is_summed: int = 1) -> None:
    """Record an event, and set back the marks of late events.

    Programs before schema 10 set `is_summed` to 0, and the roll-up of schema 10 sets it to 1 later.
    """
    row = {name: value for name, value in row_of(event).items() if name in _COLUMNS}
    marks = schema.usage_rollups
    hour = event.time - event.time % HOUR
    late = marks.c.subject.in_(["usage.hours", "usage.days"]) & (marks.c.until > hour)
    with connected(database) as connection:
        connection.execute(marks.update().where(late).values(until=hour))
        connection.execute(_events.insert(), row | {"is_summed": is_summed})


def roll_up_as_schema_10(database: str, hour: int) -> None:
    """Add up the rows of an hour, those of each value of `is_summed` in a row of their own."""
    of_hour = (_events.c.time >= hour * HOUR) & (_events.c.time < (hour + 1) * HOUR)
    new = of_hour & ~_events.c.id.startswith("rollup-")
    sums = [_events.c[name] for name in _SUMMED]
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
