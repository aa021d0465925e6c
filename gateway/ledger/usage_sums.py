"""Sums usage by day and by blocks of 2 to 128 days, so that queries over a year are fast.

A transaction sums one day, after `rollup` has replaced the day's events by hourly sums. When an
event arrives for a day that is already summed, the sums of that day and of all later days become
invalid. Until these days are summed again, queries read the days' events instead of the sums (see
`usage_marks`).
"""

from itertools import pairwise
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, func, literal, select

from gateway.ledger import schema
from gateway.ledger.store import Store
from gateway.ledger.usage_blocks import Blocks, is_in
from gateway.ledger.usage_fields import SUMMED
from gateway.ledger.usage_marks import DAY, LOCK, locked_marks, move_days
from wire.protocol import TOKEN_TASKS

LENGTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Lengths of blocks in days. A block begins at a multiple of its length, counted from 1970."""
ALL_TENANTS: Final = "*"
"""Stands for all tenants together. No tenant can have this id."""
KIND: Final = ("tenant", "model", "batch", "is_free")
AGE: Final = 2 * DAY
"""A day is summed at least this many nanoseconds after its end; see `usage_marks.hold_marks`."""
_events: Final = schema.usage_events.c
_sums: Final = schema.usage_sums
is_free: Final = case((_events.task.in_([str(task) for task in TOKEN_TASKS]), 1), else_=0)


def sum_day(store: Store) -> bool:
    """Sum the first day that is not summed yet; return whether another day may be due."""
    with store.writing(in_bulk=True) as connection:
        now = store.lock_subject(connection, LOCK)
        marks = locked_marks(connection)
        day, end = marks.days // DAY, min(marks.hours, now - AGE) // DAY
        if day >= end:
            return False
        found = connection.scalar(select(func.min(_events.time)).where(_events.time >= day * DAY))
        following = end if found is None else min(int(found) // DAY, end)
        if following == day:
            _insert_day(connection, day)
            following = day + 1
        # Other blocks that are now complete contain only days without events, so they need no row.
        for shorter, length in pairwise(LENGTHS):
            start = day - day % length
            if start + length <= following:
                _insert_block(connection, start, length, shorter)
        move_days(connection, following * DAY)
        return following < end


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
    kind = [_sums.c[name] for name in KIND]
    sums = (func.sum(_sums.c[name]) for name in SUMMED)
    rows = select(literal(length), literal(day), *kind, *sums)
    halves = Blocks(length=shorter, first=day, end=day + length)
    is_half = is_in(halves, _sums.c.length, _sums.c.day)
    _replace(connection, day, length, rows.where(is_half).group_by(*kind))


def _replace(connection: Connection, day: int, length: int, rows: Select[Any]) -> None:
    connection.execute(delete(_sums).where(_is(day, length)))
    _insert(connection, rows)


def _insert(connection: Connection, rows: Select[Any]) -> None:  # Any: the columns vary
    names = ("length", "day", *KIND, *SUMMED)
    connection.execute(_sums.insert().from_select(names, rows))


def _is(day: int, length: int) -> ColumnElement[bool]:
    return and_(_sums.c.length == length, _sums.c.day == day)
