"""Keeps totals: sums of usage by hour, by day and by blocks of up to 128 days.

The transaction that records an event adds the event to all totals of its time, even if the event is
late. When a day has ended, `catch_up` makes the totals of the blocks of several days that end with
it from shorter ones.

`is_summed` is `IN_TOTALS` in each row of `usage_events` that the totals include. Rows that an older
program wrote are in no total. Queries read these rows in addition to the totals, until `catch_up`
adds the rows.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import add, itemgetter
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, case, delete, func, literal, literal_column, select, update

from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.migrations import has_later_schema
from sluicegate.gateway.ledger.store import Store
from sluicegate.gateway.ledger.usage_fields import SUMMED
from sluicegate.gateway.ledger.usage_marks import (
    AGE,
    DAY,
    HOUR,
    LOCK,
    hold_recorders,
    locked_marks,
    move_blocks,
    read_marks,
    reopen,
)
from sluicegate.wire.protocol import TOKEN_TASKS

_log = logging.getLogger(__name__)
HOURS_OF_DAY: Final = 24
LENGTHS: Final = (1, *(HOURS_OF_DAY * 2**power for power in range(8)))
"""Lengths of blocks in hours. A block begins at a multiple of its length, counted from 1970."""
ALL_TENANTS: Final = "*"
"""Stands for all tenants together. No tenant can have this id."""
ROLLUP_PREFIX: Final = "rollup-"
"""The ids of rows that the roll-up wrote to `usage_events` begin with this prefix."""
KEPT: Final = 8 * HOURS_OF_DAY
"""Totals of single hours are kept from this many hours before the mark `blocks` on. This covers the
seven days that the console shows."""
_FREE: Final = frozenset(map(str, TOKEN_TASKS))
_COLUMNS: Final = ("length", "hour", "tenant", "model", "batch", "is_free", *SUMMED)
_kind_of: Final = itemgetter("tenant", "model", "batch", "task")
_units_of: Final = itemgetter(*SUMMED)
_events: Final = schema.usage_events.c
_table: Final = schema.usage_totals
_totals: Final = _table.c
is_free: Final = case((_events.task.in_(sorted(_FREE)), 1), else_=0)
# A literal, because a database does not use a partial index if a parameter holds the value.
is_outside_totals: Final = _events.is_summed < literal_column(str(schema.IN_TOTALS))
_Units = tuple[int, ...]  # in the order of `SUMMED`
PlaceT = TypeVar("PlaceT", bound=tuple[int | str, ...])


def hours_since(blocks: int) -> int:
    """Return the first hour of which totals are kept, given the mark `blocks`."""
    return blocks // HOUR - KEPT


def add_to_totals(store: Store, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add new rows of `usage_events` to the totals, in the transaction that inserts the rows.

    Call `hold_marks` at the beginning of the transaction, and this function at its end. From this
    call until the commit, other transactions that change the same totals must wait.
    """
    if not rows:
        return
    marks = reopen(connection, min(row["time"] for row in rows))
    _add(store, connection, rows, marks.blocks)


def _add(
    store: Store, connection: Connection, rows: Sequence[Mapping[str, Any]], blocks: int
) -> None:
    """Add rows to the totals that exist, given the mark `blocks`."""
    hours: dict[tuple[int, str, str, int, int], _Units] = {}
    for row in rows:
        tenant, model, batch, task = _kind_of(row)
        free = 1 if task in _FREE else 0
        _add_units(hours, (row["time"] // HOUR, tenant, model, batch, free), _units_of(row))
    for (hour, _, model, batch, free), units in list(hours.items()):
        _add_units(hours, (hour, ALL_TENANTS, model, batch, free), units)
    blocks_of = {hour: _blocks_of(hour, blocks) for hour in {place[0] for place in hours}}
    totals: dict[tuple[int, int, str, str, int, int], _Units] = {}
    for (hour, tenant, model, batch, free), units in hours.items():
        for length, start in blocks_of[hour]:
            _add_units(totals, (length, start, tenant, model, batch, free), units)
    # Sorted, so that concurrent transactions lock rows in the same order and cannot deadlock.
    added = [dict(zip(_COLUMNS, (*place, *totals[place]), strict=True)) for place in sorted(totals)]
    store.add_to(connection, _table, added, SUMMED)


def _add_units(sums: dict[PlaceT, _Units], place: PlaceT, units: _Units) -> None:
    former = sums.get(place)
    sums[place] = units if former is None else tuple(map(add, former, units))


def _blocks_of(hour: int, blocks: int) -> list[tuple[int, int]]:
    """Return length and first hour of each block that contains `hour` and has totals."""
    found = [(length, hour - hour % length) for length in LENGTHS]
    latest = blocks // HOUR
    first = 0 if hour >= hours_since(blocks) else 1
    return found[first:2] + [
        (length, start) for length, start in found[2:] if start + length <= latest
    ]


def catch_up(store: Store, *, limit: int) -> bool:
    """Add at most `limit` rows of older programs to the totals.

    If there are no such rows, delete the totals of an hour that are no longer kept. If there is no
    such hour, make the totals of the blocks of several days that end with the next day, if it has
    ended. If the mark `blocks` is ahead of the clocks, move it back.

    If a later program has migrated the ledger, do nothing.

    Returns:
        Whether there may be more to do now.
    """
    return _add_missing(store, limit=limit) or _delete_hour(store) or _move_blocks(store)


def _add_missing(store: Store, *, limit: int) -> bool:
    """Add rows of older programs, the newest first; return whether there may be more.

    Fewer than `limit` rows are the last, except those that an older program writes now.
    """
    with store.writing(in_bulk=True) as connection:
        store.lock_subject(connection, LOCK)
        if has_later_schema(connection):
            return False
        blocks = locked_marks(connection).blocks
        columns = [_events[name] for name in ("id", "time", "task", *_COLUMNS[2:5], *SUMMED)]
        query = select(*columns).where(is_outside_totals).order_by(_events.time.desc())
        found = connection.execute(query.limit(limit)).mappings()
        rows = [dict(row) for row in found]
        if rows:
            # Rows of the roll-up get new ids, so that the roll-up of an older program cannot add to
            # them.
            is_sum = _events.id.startswith(ROLLUP_PREFIX, autoescape=True)
            renamed = case((is_sum, _events.id + f"-{secrets.token_hex(8)}"), else_=_events.id)
            own = update(schema.usage_events).where(_events.id.in_([row["id"] for row in rows]))
            connection.execute(own.values(id=renamed, is_summed=schema.IN_TOTALS))
            # This comes last, because other transactions wait for the locked rows until the commit.
            _add(store, connection, rows, blocks)
        return len(rows) == limit


def _delete_hour(store: Store) -> bool:
    """Delete the oldest totals of an hour, if they are no longer kept; return whether they were.

    Nothing reads or adds to these totals any more, so the deletion holds no recorder.
    """
    with store.writing(in_bulk=True) as connection:
        store.lock_subject(connection, LOCK)
        if has_later_schema(connection):
            return False
        oldest = connection.scalar(select(func.min(_totals.hour)).where(_totals.length == 1))
        if oldest is None or oldest >= hours_since(read_marks(connection).blocks):
            return False
        connection.execute(delete(_table).where(_totals.length == 1, _totals.hour == oldest))
        return True


def _move_blocks(store: Store) -> bool:
    """Move the mark `blocks` by a day if it is due, and return whether it was.

    Moving it forward needs an ended day: the totals of single hours that are then no longer kept
    are deleted. So a wrong clock must not end days: the earliest of both clocks and the newest
    event decides. If all of them were ahead, the mark goes back once neither clock is.

    If a recorder is frozen, the mark stays.
    """
    with store.writing(in_bulk=True) as connection:
        clocks = (store.lock_subject(connection, LOCK), store.clock())
        if has_later_schema(connection):
            return False
        newest = connection.scalar(select(func.max(_events.time)))
        blocks = read_marks(connection).blocks
        is_ahead = blocks + DAY > max(clocks)
        has_ended = newest is not None and blocks + DAY <= min(*clocks, int(newest)) - AGE
        if not (is_ahead or has_ended):
            return False
        if not hold_recorders(connection):
            _log.warning("a day is not summed yet: a transaction that records events does not end")
            return False
        if is_ahead:
            _take_day_back(connection, blocks)
        else:
            _add_day(connection, blocks + DAY)
        return True


def _add_day(connection: Connection, until: int) -> None:
    """Make the totals of the blocks that end at `until`, and move the mark there."""
    end = until // HOUR
    for shorter, length in pairwise(LENGTHS[1:]):
        if end % length == 0:
            _join(connection, shorter, first=end - length, end=end)
    move_blocks(connection, until)


def _take_day_back(connection: Connection, until: int) -> None:
    """Move the mark back from `until` by a day.

    The totals of the blocks that end at `until` are deleted. The hours that are then kept again get
    their totals from the events.
    """
    end, kept = until // HOUR, hours_since(until)
    for length in LENGTHS[2:]:
        if end % length == 0:
            same = (_totals.length == length, _totals.hour == end - length)
            connection.execute(delete(_table).where(*same))
    connection.execute(delete(_table).where(_totals.length == 1, _totals.hour < kept))
    _sum_hours(connection, first=kept - HOURS_OF_DAY, end=kept)
    move_blocks(connection, until - DAY)


def _sum_hours(connection: Connection, *, first: int, end: int) -> None:
    """Make the totals of the hours from `first` to before `end` from events."""
    in_totals = _events.is_summed == schema.IN_TOTALS
    kind = (_events.model, _events.batch, is_free.label("is_free"))
    for tenant in (_events.tenant, literal(ALL_TENANTS).label("tenant")):
        hour = (_events.time // HOUR).label("hour")
        rows = select(hour, tenant, *kind, *(_events[name] for name in SUMMED))
        rows = rows.where(in_totals, _events.time >= first * HOUR, _events.time < end * HOUR)
        found = rows.subquery().c
        place = [found[name] for name in _COLUMNS[1:6]]
        sums = (func.sum(found[name]) for name in SUMMED)
        query = select(literal(1), *place, *sums).group_by(*place)
        connection.execute(_table.insert().from_select(_COLUMNS, query))


def _join(connection: Connection, shorter: int, *, first: int, end: int) -> None:
    """Add up the blocks of the length `shorter` between two hours."""
    kind = (_totals.tenant, _totals.model, _totals.batch, _totals.is_free)
    sums = (func.sum(_totals[name]) for name in SUMMED)
    rows = select(literal(end - first), literal(first), *kind, *sums)
    rows = rows.where(_totals.length == shorter, _totals.hour >= first, _totals.hour < end)
    connection.execute(_table.insert().from_select(_COLUMNS, rows.group_by(*kind)))
