"""Stores the times up to which usage events were added up by hour and by day.

Programs up to schema 8 know only the mark `usage`. Their roll-up moves it, and their late events
set it back. This program keeps that mark at a time that is never reached. If the mark has changed,
an older program has written to the ledger, and the sums by day may lack an event. The sums by day
are then not used until they are recomputed. Sums by hour need no such mark: each row of
`usage_events` says whether it is in the sums (see `usage_hours`).
"""

from typing import Final

import msgspec
from sqlalchemy import Connection, bindparam, select, update

from gateway.ledger import schema

HOUR: Final = 3_600 * 1_000_000_000
DAY: Final = 24 * HOUR
LOCK: Final = "usage.rollup"
"""The subject that a transaction locks before it moves the marks; see `Store.lock_subject`."""
_FORMER: Final = "usage"
_HOURS: Final = "usage.hours"
_DAYS: Final = "usage.days"
_KEPT_HOURS: Final = "usage.kept_hours"
_NEVER: Final = 2**63 - 1
_marks: Final = schema.usage_rollups
_set_back: Final = (
    update(_marks)
    .where(_marks.c.subject.in_([_HOURS, _DAYS]), _marks.c.until > bindparam("hour"))
    .values(until=bindparam("hour"))
)
_locked: Final = select(_marks).order_by(_marks.c.subject).with_for_update()


INITIAL: Final = (
    {"subject": _FORMER, "until": 0},
    {"subject": _HOURS, "until": _NEVER},
    {"subject": _DAYS, "until": 0},
    {"subject": _KEPT_HOURS, "until": 0},
)
"""The rows of a new ledger. A ledger of an older schema lacks some of them."""


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the marks, as Unix times in nanoseconds."""

    hours: int
    """The roll-up has added up all events before this time."""
    days: int
    """The sums by day cover all events before this time."""
    kept_hours: int
    """The sums by hour before this time are deleted."""


def hold_marks(connection: Connection, oldest: int, *, now: int) -> None:
    """Lock the marks if an event at the time `oldest` could be missed by a mark that moves.

    A day is summed two days after its end at the earliest. Therefore only an event that is more
    than a day late can be missed, and only such an event has to wait for the lock.
    """
    if oldest < now - DAY:
        connection.execute(_locked)


def reopen(connection: Connection, oldest: int, *, now: int) -> None:
    """Set the marks back to the hour of `oldest`, so that a late event is added up."""
    hold_marks(connection, oldest, now=now)
    connection.execute(_set_back, {"hour": oldest - oldest % HOUR})


def locked_marks(connection: Connection) -> Marks:
    """Return the marks, locked against late events until the transaction ends.

    The caller holds `LOCK`.
    """
    found = {row.subject: int(row.until) for row in connection.execute(_locked)}
    if found[_FORMER] == _NEVER:
        return Marks(hours=found[_HOURS], days=found[_DAYS], kept_hours=found[_KEPT_HOURS])
    hours = min(found[_FORMER], found[_HOURS])
    marks = Marks(hours=hours, days=0, kept_hours=found[_KEPT_HOURS])
    move_hours(connection, marks.hours)
    move_days(connection, marks.days)
    _move(connection, _FORMER, _NEVER)
    return marks


def move_hours(connection: Connection, until: int) -> None:
    """Set the time up to which the roll-up has added up all events."""
    _move(connection, _HOURS, until)


def move_days(connection: Connection, until: int) -> None:
    """Set the time up to which the sums by day cover all events."""
    _move(connection, _DAYS, until)


def move_kept_hours(connection: Connection, since: int) -> None:
    """Set the time before which the sums by hour are deleted."""
    _move(connection, _KEPT_HOURS, since)


def read_marks(connection: Connection) -> Marks:
    """Return the marks. `days` is 0 if an older program may have made the sums incorrect."""
    found = {row.subject: int(row.until) for row in connection.execute(select(_marks))}
    days = found[_DAYS] if found[_FORMER] == _NEVER else 0
    return Marks(hours=found[_HOURS], days=days, kept_hours=found[_KEPT_HOURS])


def _move(connection: Connection, subject: str, until: int) -> None:
    connection.execute(update(_marks).where(_marks.c.subject == subject).values(until=until))
