"""Stores the times (marks) up to which usage events were summed by hour and by day.

The mark named `usage` shows whether an older program (up to schema 8) has changed the ledger. Older
programs know only this mark, and move it when they sum events and when an event is late. This
program sets the mark to a time that is never reached.

If this program later finds a different time in the mark, the sums by day may lack an event. They
are not used until they are recomputed. Sums by hour need no such check, because each row of
`usage_events` says whether the sums include the row (see `usage_hours`).
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
    """Holds the marks. They are Unix times in nanoseconds."""

    hours: int
    """The roll-up has replaced all events before this time by hourly sums."""
    days: int
    """The sums by day cover all events before this time."""
    kept_hours: int
    """The sums by hour before this time are deleted."""


def hold_marks(connection: Connection, oldest: int, *, now: int) -> None:
    """Lock the marks if an event at the time `oldest` could otherwise be left out of the sums.

    While this transaction records an event, another transaction may move a mark beyond the event's
    time. The event would then be in no sum. A day is summed two days after its end at the earliest,
    so the lock is needed only for events that are more than a day late.
    """
    if oldest < now - DAY:
        connection.execute(_locked)


def reopen(connection: Connection, oldest: int, *, now: int) -> None:
    """Set the marks back to the hour of `oldest`, so that a late event gets into the sums."""
    hold_marks(connection, oldest, now=now)
    connection.execute(_set_back, {"hour": oldest - oldest % HOUR})


def locked_marks(connection: Connection) -> Marks:
    """Lock the marks until the transaction ends, and return them.

    Transactions that record late events wait for this lock. The caller must already have locked the
    subject `LOCK` with `Store.lock_subject`.
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
    """Set the time before which the roll-up has replaced all events by hourly sums."""
    _move(connection, _HOURS, until)


def move_days(connection: Connection, until: int) -> None:
    """Set the time before which the sums by day cover all events."""
    _move(connection, _DAYS, until)


def move_kept_hours(connection: Connection, since: int) -> None:
    """Set the time before which the sums by hour are deleted."""
    _move(connection, _KEPT_HOURS, since)


def read_marks(connection: Connection) -> Marks:
    """Return the marks. `days` is 0 if the sums by day may lack events of an older program."""
    found = {row.subject: int(row.until) for row in connection.execute(select(_marks))}
    days = found[_DAYS] if found[_FORMER] == _NEVER else 0
    return Marks(hours=found[_HOURS], days=days, kept_hours=found[_KEPT_HOURS])


def _move(connection: Connection, subject: str, until: int) -> None:
    connection.execute(update(_marks).where(_marks.c.subject == subject).values(until=until))
