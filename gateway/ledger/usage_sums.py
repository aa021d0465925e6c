"""Sums usage events by day, and days by blocks of 2 to 128, so that a year is read quickly.

Sums are made of days whose events were added up to rows of an hour (`rollup`), one day in a
transaction. They are a copy: a day with a late event, and those after it, are read from the events
until they are summed anew (`usage_marks`).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, literal, select

from backends.protocol import TOKEN_TASKS
from gateway.ledger import schema
from gateway.ledger.store import Store
from gateway.ledger.types import Units
from gateway.ledger.usage_marks import DAY, LOCK, locked_marks, move_days

LENGTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Days of a block; each block begins at a multiple of its length since the epoch."""
ALL_TENANTS: Final = "*"
"""Stands for all tenants together: no tenant has such an id."""
SUMMED: Final = Units.__struct_fields__
_KIND: Final = ("tenant", "model", "batch", "is_free")
_AGE: Final = 2 * DAY
_LISTED_DAYS: Final = 1_000
"""Databases limit the number of values in a statement."""
_events: Final = schema.usage_events.c
_sums: Final = schema.usage_sums
is_free: Final = case((_events.task.in_([str(task) for task in TOKEN_TASKS]), 1), else_=0)


class DayBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Names blocks of one length that follow on each other, by the days they begin at."""

    length: int
    first: int
    end: int


def sum_day(store: Store) -> bool:
    """Sum the first day that is not summed; return whether there may be another one."""
    with store.writing(in_bulk=True) as connection:
        now = store.lock_subject(connection, LOCK)
        marks = locked_marks(connection)
        day, end = marks.days // DAY, min(marks.hours, now - _AGE) // DAY
        if day >= end:
            return False
        found = connection.scalar(select(func.min(_events.time)).where(_events.time >= day * DAY))
        following = end if found is None else min(int(found) // DAY, end)
        if following == day:
            _insert_day(connection, day)
            following = day + 1
        # Of those that end now, others than that of `day` are without events.
        for shorter, length in pairwise(LENGTHS):
            start = day - day % length
            if start + length <= following:
                _insert_block(connection, start, length, shorter)
        move_days(connection, following * DAY)
        return following < end


def blocks_between(first: int, end: int, lengths: Sequence[int] = LENGTHS) -> list[DayBlocks]:
    """Return the fewest blocks of `lengths` that make up the days from `first` to before `end`."""
    found: list[DayBlocks] = []
    while first < end:
        length = max(each for each in lengths if first % each == 0 and first + each <= end)
        start = first
        if found and found[-1].length == length:
            start = found.pop().first
        first += length
        found.append(DayBlocks(length=length, first=start, end=first))
    return found


def is_in(block: DayBlocks, *, of_tenants: bool = False) -> ColumnElement[bool]:
    """Return the condition of the rows of blocks; `of_tenants` where only some tenants are read.

    The key begins with length and day, so that a few tenants are found day by day, all in a range.
    """
    days, has_length = _sums.c.day, _sums.c.length == block.length
    starts = range(block.first, block.end, block.length)
    if of_tenants and len(starts) <= _LISTED_DAYS:
        return and_(has_length, days.in_(starts))
    return and_(has_length, days >= block.first, days < block.end)


def _insert_day(connection: Connection, day: int) -> None:
    kind = (_events.tenant, _events.model, _events.batch, is_free)
    rows = select(literal(1), literal(day), *kind, *(func.sum(_events[n]) for n in SUMMED))
    rows = rows.where(_events.time >= day * DAY, _events.time < (day + 1) * DAY)
    _replace(connection, day, 1, rows.group_by(*kind))
    kind_of_all = (_sums.c.model, _sums.c.batch, _sums.c.is_free)
    sums = (func.sum(_sums.c[name]) for name in SUMMED)
    whole = select(literal(1), literal(day), literal(ALL_TENANTS), *kind_of_all, *sums)
    _insert(connection, whole.where(_is(day, 1)).group_by(*kind_of_all))


def _insert_block(connection: Connection, day: int, length: int, shorter: int) -> None:
    kind = [_sums.c[name] for name in _KIND]
    sums = (func.sum(_sums.c[name]) for name in SUMMED)
    rows = select(literal(length), literal(day), *kind, *sums)
    parts = DayBlocks(length=shorter, first=day, end=day + length)
    _replace(connection, day, length, rows.where(is_in(parts)).group_by(*kind))


def _replace(connection: Connection, day: int, length: int, rows: Select[Any]) -> None:
    connection.execute(delete(_sums).where(_is(day, length)))
    _insert(connection, rows)


def _insert(connection: Connection, rows: Select[Any]) -> None:  # Any: as many columns as there are
    names = ("length", "day", *_KIND, *SUMMED)
    connection.execute(_sums.insert().from_select(names, rows))


def _is(day: int, length: int) -> ColumnElement[bool]:
    return and_(_sums.c.length == length, _sums.c.day == day)
