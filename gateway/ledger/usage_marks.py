"""Stores the times (marks) up to which billing has rolled up events and has written totals.

Programs of schema 10 know three more marks. They sum events in tables of their own (`usage_hours`
and `usage_sums`), to which this program does not add. The mark `usage.kept_hours` therefore says
that no hour is summed in them. The mark `usage.days` is set back when this program records a late
event, so that older programs sum the event's day again.
"""

from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Select, bindparam, exc, func, select, update

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger import schema

HOUR: Final = 3_600 * 1_000_000_000
DAY: Final = 24 * HOUR
LOCK: Final = "usage.rollup"
"""The subject that a transaction locks before it moves the marks; see `Store.lock_subject`."""
AGE: Final = 2 * DAY
"""The mark `blocks` stays at least this many nanoseconds behind the present."""
_ROLLED_UP: Final = "usage.hours"
_BLOCKS: Final = "usage.blocks"
_OLD_DAYS: Final = "usage.days"
_OLD_HOURS: Final = "usage.kept_hours"
_NEEDED: Final = frozenset((_ROLLED_UP, _BLOCKS, _OLD_DAYS))
_NEVER: Final = 2**63 - 1
# The number of PostgreSQL's advisory lock that protects the mark `blocks`.
_BLOCKS_LOCK: Final = int.from_bytes(b"sg:block")
_LONGEST_HOLD: Final = 1.0
_LOCK_NOT_AVAILABLE: Final = "55P03"  # PostgreSQL's code of a lock that did not come in time
START_TOTALS: Final = (
    # A restored backup of an older schema leaves totals of events that are then added again.
    "DELETE FROM usage_totals",
    f"DELETE FROM usage_rollups WHERE subject = '{_BLOCKS}'",  # noqa: S608 - of constants
    f"UPDATE usage_rollups SET until = {_NEVER} WHERE subject = '{_OLD_HOURS}'",  # noqa: S608 - of constants
)
"""These statements of the migration remove all totals, and have programs of schema 10 read events
where they read sums of hours."""
RESTART_TOTALS: Final = (*START_TOTALS, "UPDATE usage_events SET is_summed = 0")
"""These statements have billing make all totals anew."""
_marks: Final = schema.usage_rollups
_set_back: Final = (
    update(_marks)
    .where(_marks.c.subject.in_([_ROLLED_UP, _OLD_DAYS]), _marks.c.until > bindparam("hour"))
    .values(until=bindparam("hour"))
)
_all: Final = select(_marks)
_locked: Final = _all.order_by(_marks.c.subject).with_for_update()


class MarksMissing(DependencyUnavailable):
    """The ledger has no marks of this program's schema, as after the restore of an older backup.

    The next call migrates the ledger.
    """


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the marks. They are Unix times in nanoseconds."""

    rolled_up: int
    """The roll-up has replaced all events before this time by hourly sums."""
    blocks: int
    """Totals of several days exist for all blocks that end at or before this time. The mark is the
    beginning of a day."""


def initial(now: int) -> list[dict[str, Any]]:
    """Return the rows of a new ledger. A ledger of an older schema lacks some of them."""
    marks = {_ROLLED_UP: 0, _BLOCKS: (now - AGE) // DAY * DAY}
    marks |= {"usage": _NEVER, _OLD_DAYS: 0, _OLD_HOURS: _NEVER}
    return [{"subject": subject, "until": until} for subject, until in marks.items()]


def are_missing(connection: Connection) -> bool:
    """Return whether the ledger lacks marks that this program needs."""
    return not set(connection.scalars(select(_marks.c.subject))) >= _NEEDED


def hold_marks(connection: Connection, oldest: int) -> None:
    """Keep the mark `blocks` where it is until the transaction ends.

    While this transaction records an event at the time `oldest`, another transaction could move the
    mark beyond the event's time, and would not see the event. Clocks cannot rule this out, because
    they differ. If `reopen` may have to move marks back, all marks are locked already now, because
    all transactions must lock the marks before the event logs.
    """
    if connection.dialect.name == "postgresql":  # in SQLite, there is only one writer
        connection.execute(select(func.pg_advisory_xact_lock_shared(_BLOCKS_LOCK)))
    found = _read(connection, _all)
    if oldest < max(found[_BLOCKS] + DAY, found[_ROLLED_UP], found[_OLD_DAYS]):
        connection.execute(_locked)


def hold_recorders(connection: Connection) -> bool:
    """Wait for all transactions that record events, and have new ones wait for this transaction.

    The transaction can then move the mark `blocks`. From this call on, it waits at most
    `_LONGEST_HOLD` for a lock.

    Returns:
        Whether all transactions that record events have ended. One that is frozen does not, and
        new ones must not wait for it.
    """
    if connection.dialect.name != "postgresql":  # in SQLite, there is only one writer
        return True
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(_LONGEST_HOLD * 1000)}")
    try:
        with connection.begin_nested():
            connection.execute(select(func.pg_advisory_xact_lock(_BLOCKS_LOCK)))
    except exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", "") != _LOCK_NOT_AVAILABLE:
            raise
        return False
    return True


def reopen(connection: Connection, oldest: int) -> Marks:
    """Have the hour of the event at the time `oldest` rolled up again, and return the marks."""
    hour = oldest - oldest % HOUR
    found = _read(connection, _all)
    if max(found[_ROLLED_UP], found[_OLD_DAYS]) > hour:
        connection.execute(_set_back, {"hour": hour})
    return _marks_in(found)


def locked_marks(connection: Connection) -> Marks:
    """Lock the marks until the transaction ends, and return them.

    Transactions that record late events wait for this lock. The caller must already have locked the
    subject `LOCK` with `Store.lock_subject`.
    """
    return _marks_in(_read(connection, _locked))


def read_marks(connection: Connection) -> Marks:
    """Return the marks."""
    return _marks_in(_read(connection, _all))


def move_rolled_up(connection: Connection, until: int) -> None:
    """Set the time before which the roll-up has replaced all events by hourly sums."""
    _move(connection, _ROLLED_UP, until)


def move_blocks(connection: Connection, until: int) -> None:
    """Set the time before which totals of several days exist."""
    _move(connection, _BLOCKS, until)


def _read(connection: Connection, query: Select[Any]) -> dict[str, int]:
    found = {row.subject: int(row.until) for row in connection.execute(query)}
    if not found.keys() >= _NEEDED:
        raise MarksMissing("the ledger was replaced by an older one", retry_after=1.0)
    return found


def _marks_in(found: dict[str, int]) -> Marks:
    return Marks(rolled_up=found[_ROLLED_UP], blocks=found[_BLOCKS])


def _move(connection: Connection, subject: str, until: int) -> None:
    connection.execute(update(_marks).where(_marks.c.subject == subject).values(until=until))
