"""Sums the usage events of the last ten days by hour and by day.

The transaction that records events also updates the sums.

A program of an older version does not update the sums. Its rows in `usage_events` therefore have
`is_summed = 0`. The sum of an hour or a day is correct if no row of that time has `is_summed = 0`.
The roll-up recomputes the incorrect hours, from the newest to the oldest. It also deletes sums that
are older than ten days, which the console does not show.
"""

import secrets
from collections.abc import Iterable, Mapping
from operator import add, itemgetter
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Select,
    case,
    delete,
    func,
    literal,
    literal_column,
    select,
    update,
)

from gateway.ledger import schema
from gateway.ledger.store import Store
from gateway.ledger.usage_fields import SUMMED
from gateway.ledger.usage_marks import DAY, HOUR, LOCK, Marks, locked_marks, move_kept_hours
from gateway.ledger.usage_sums import AGE, ALL_TENANTS, KIND, is_free
from wire.protocol import TOKEN_TASKS

HOURS_OF_DAY: Final = 24
HOUR_LENGTHS: Final = (1, HOURS_OF_DAY)
"""Lengths of blocks in hours. A block begins at a multiple of its length, counted from 1970."""
ROLLUP_PREFIX: Final = "rollup-"
"""The ids of rows that the roll-up wrote to `usage_events` begin with this prefix."""
_KEPT: Final = 10 * DAY
"""Nanoseconds for which sums are kept. This covers the seven days that the console shows."""
_FREE: Final = frozenset(map(str, TOKEN_TASKS))
_COLUMNS: Final = ("length", "hour", *KIND, *SUMMED)
_kind_of: Final = itemgetter("tenant", "model", "batch", "task")
_units_of: Final = itemgetter(*SUMMED)
_events: Final = schema.usage_events.c
_table: Final = schema.usage_hours
_hours: Final = _table.c
# A literal, because a database does not use a partial index if a parameter holds the value.
_is_not_summed: Final = _events.is_summed == literal_column("0")
_newest: Final = select(func.max(_events.time)).where(_is_not_summed)
_Place = tuple[int, int, str, str, int, int]  # length, hour and `KIND`
_Units = tuple[int, ...]  # in the order of `SUMMED`


def add_hours(store: Store, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Update the sums for new rows of `usage_events`, in the transaction that inserts the rows.

    Call this function at the end of the transaction. From this call until the commit, other
    transactions that change the same sums must wait.
    """
    sums: dict[_Place, _Units] = {}
    for row in rows:
        tenant, model, batch, task = _kind_of(row)
        hour = row["time"] // HOUR
        _add(sums, (1, hour, tenant, model, batch, 1 if task in _FREE else 0), _units_of(row))
    for (_, hour, _, model, batch, free), units in list(sums.items()):
        _add(sums, (1, hour, ALL_TENANTS, model, batch, free), units)
    for (_, hour, tenant, model, batch, free), units in list(sums.items()):
        day = hour - hour % HOURS_OF_DAY
        _add(sums, (HOURS_OF_DAY, day, tenant, model, batch, free), units)
    # Sorted, so that concurrent transactions lock rows in the same order and cannot deadlock.
    added = [dict(zip(_COLUMNS, (*place, *sums[place]), strict=True)) for place in sorted(sums)]
    if added:
        store.add_to(connection, _table, added, SUMMED)


def _add(sums: dict[_Place, _Units], place: _Place, units: _Units) -> None:
    former = sums.get(place)
    sums[place] = units if former is None else tuple(map(add, former, units))


def summed_since(connection: Connection, marks: Marks) -> int:
    """Return the Unix time in nanoseconds from which on the sums of all hours are correct."""
    newest = _newest_not_summed(connection)
    return max(marks.kept_hours, 0 if newest is None else (newest // HOUR + 1) * HOUR)


def keep_hours(store: Store) -> bool:
    """Delete the sums of one old hour, or recompute the sums of the newest incorrect hour.

    An hour is recomputed only after the roll-up has replaced its events by sums. Before that, the
    hour can have too many rows for one transaction.

    Returns:
        Whether the sums of another hour may have to be deleted or recomputed.
    """
    with store.writing(in_bulk=True) as connection:
        now = store.lock_subject(connection, LOCK)
        marks = locked_marks(connection)
        oldest = (now - _KEPT) // DAY * DAY
        if marks.kept_hours < oldest:
            move_kept_hours(connection, oldest)
        if _delete_hour(connection, before=oldest // HOUR):
            return True
        newest = _newest_not_summed(connection)
        if newest is None or newest < oldest:
            return False
        hour = newest // HOUR
        if (hour + 1) * HOUR > min(marks.hours, now - AGE):
            return False
        _sum_hour(connection, hour)
        return True


def _newest_not_summed(connection: Connection) -> int | None:
    newest = connection.scalar(_newest)
    return None if newest is None else int(newest)


def _sum_hour(connection: Connection, hour: int) -> None:
    of_hour = (_events.time >= hour * HOUR, _events.time < (hour + 1) * HOUR)
    # First the rows are marked as summed, then they are summed. A row that an older program inserts
    # between these steps stays unmarked, so the hour is recomputed once more. Rows of the roll-up
    # get new ids, so that the roll-up of an older program cannot increase them.
    is_sum = _events.id.startswith(ROLLUP_PREFIX, autoescape=True)
    renamed = case((is_sum, _events.id + f"-{secrets.token_hex(8)}"), else_=_events.id)
    marked = update(schema.usage_events).where(*of_hour, _is_not_summed)
    connection.execute(marked.values(id=renamed, is_summed=1))
    kind = (_events.tenant, _events.model, _events.batch, is_free)
    rows = select(literal(1), literal(hour), *kind, *(func.sum(_events[n]) for n in SUMMED))
    _replace(connection, 1, hour, rows.where(*of_hour).group_by(*kind))
    of_all = (_hours.model, _hours.batch, _hours.is_free)
    whole = select(literal(1), literal(hour), literal(ALL_TENANTS), *of_all, *_summed())
    whole = whole.where(_hours.length == 1, _hours.hour == hour).group_by(*of_all)
    _insert(connection, whole)
    day = hour - hour % HOURS_OF_DAY
    newest = _newest_not_summed(connection)
    if newest is None or newest < day * HOUR:
        _sum_day(connection, day)


def _sum_day(connection: Connection, day: int) -> None:
    kind = [_hours[name] for name in KIND]
    rows = select(literal(HOURS_OF_DAY), literal(day), *kind, *_summed())
    rows = rows.where(_hours.length == 1, _hours.hour >= day, _hours.hour < day + HOURS_OF_DAY)
    _replace(connection, HOURS_OF_DAY, day, rows.group_by(*kind))


def _delete_hour(connection: Connection, *, before: int) -> bool:
    """Delete the sums of the oldest hour or day that begins before the hour `before`.

    Returns:
        Whether there was such an hour or day.
    """
    for length in HOUR_LENGTHS:
        first = select(func.min(_hours.hour)).where(_hours.length == length)
        hour = connection.scalar(first)
        if hour is not None and hour < before:
            _delete(connection, length, hour)
            return True
    return False


def _summed() -> list[Any]:  # Any: SQLAlchemy's functions have no type of their own
    return [func.sum(_hours[name]) for name in SUMMED]


def _replace(connection: Connection, length: int, hour: int, rows: Select[Any]) -> None:
    _delete(connection, length, hour)
    _insert(connection, rows)


def _delete(connection: Connection, length: int, hour: int) -> None:
    connection.execute(delete(_table).where(_hours.length == length, _hours.hour == hour))


def _insert(connection: Connection, rows: Select[Any]) -> None:  # Any: as many columns as there are
    connection.execute(_table.insert().from_select(_COLUMNS, rows))
