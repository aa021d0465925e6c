"""Records up to when usage events were added up, by hour and by day, and when that is void.

Programs up to schema 8 know the subject `usage` alone: a late event, and their roll-up, change it.
This program keeps it at a time that is never reached, so that it notices that one of them wrote to
the ledger: sums by day may then lack an event, and are not used until they were made anew.
Sums by hour need none of that, as rows say themselves whether they are in one (`usage_hours`).
"""

from typing import Final

import msgspec
from sqlalchemy import Connection, bindparam, select, update

from gateway.ledger import schema

HOUR: Final = 3_600 * 1_000_000_000
DAY: Final = 24 * HOUR
LOCK: Final = "usage.rollup"
"""The subject that whoever moves the marks locks."""
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
"""The rows of a new ledger, which one of an older schema lacks in part."""


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the time up to which events were added up to rows of an hour, and to sums of a day.

    Sums of hours before `kept_hours` were deleted.
    """

    hours: int
    days: int
    kept_hours: int


def hold_marks(connection: Connection, oldest: int, *, now: int) -> None:
    """Lock the marks before an event of the time `oldest` that may miss one that moves meanwhile.

    A day is summed two days after its end at the earliest. So only an event that is a day late can
    miss a mark, and only such a one waits for it.
    """
    if oldest < now - DAY:
        connection.execute(_locked)


def reopen(connection: Connection, oldest: int, *, now: int) -> None:
    """Schedule the hours from `oldest` on for another scan, before a late event of that time."""
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
    """Set the time up to which events were added up to rows of an hour."""
    _move(connection, _HOURS, until)


def move_days(connection: Connection, until: int) -> None:
    """Set the time up to which there are sums of days."""
    _move(connection, _DAYS, until)


def move_kept_hours(connection: Connection, since: int) -> None:
    """Set the time before which sums of hours are deleted."""
    _move(connection, _KEPT_HOURS, since)


def read_marks(connection: Connection) -> Marks:
    """Return the marks; `days` is 0 where sums of days cannot be relied on."""
    found = {row.subject: int(row.until) for row in connection.execute(select(_marks))}
    days = found[_DAYS] if found[_FORMER] == _NEVER else 0
    return Marks(hours=found[_HOURS], days=days, kept_hours=found[_KEPT_HOURS])


def _move(connection: Connection, subject: str, until: int) -> None:
    connection.execute(update(_marks).where(_marks.c.subject == subject).values(until=until))
