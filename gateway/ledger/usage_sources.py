"""Decides which totals and which single events a query of usage reads."""

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, func, select

from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.ledger import schema
from sluicegate.gateway.ledger.types import GroupBy
from sluicegate.gateway.ledger.usage_marks import HOUR, read_marks
from sluicegate.gateway.ledger.usage_totals import (
    HOURS_OF_DAY,
    LENGTHS,
    hours_since,
    is_outside_totals,
)

_events: Final = schema.usage_events.c
_totals: Final = schema.usage_totals.c
_newest_outside: Final = select(func.max(_events.time)).where(is_outside_totals)
_LARGEST: Final = 2**63 - 1
_LISTED: Final = 1_000
"""The most values in a condition. Databases limit the number of values in a statement."""
_Span = tuple[int, int]  # nanoseconds: the start, and the end (exclusive)


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Describes adjacent blocks of the same length.

    `length`, `first` and `end` (exclusive) are numbers of hours.
    """

    length: int
    first: int
    end: int

    def are_those(self, *, of_tenants: bool) -> ColumnElement[bool]:
        """Return the SQL condition that selects the totals of these blocks.

        Usually, the condition is a range of block starts. With `of_tenants`, the query selects
        tenants, too, and the condition lists each start, if there are at most a thousand. The
        database can then find each tenant's rows with the primary key, which begins with the
        columns length, hour and tenant.
        """
        starts = range(self.first, self.end, self.length)
        if of_tenants and len(starts) <= _LISTED:
            return and_(_totals.length == self.length, _totals.hour.in_(starts))
        return and_(
            _totals.length == self.length, _totals.hour >= self.first, _totals.hour < self.end
        )


class UsageSources(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the events and the totals that together cover a time span.

    `events` holds the spans whose events are read. `blocks` holds the blocks whose totals are read.
    Of the spans in `outside`, only those events are read that the totals do not include.
    """

    events: list[_Span]
    blocks: list[Blocks] = []
    outside: list[_Span] = []


def sources_of(
    connection: Connection, since: int, until: int, group_by: Sequence[GroupBy]
) -> UsageSources:
    """Return the sources that cover the time from `since` to before `until`.

    Both are Unix times in nanoseconds.

    Raises:
        InvalidRequest: a time is too large for the ledger.
    """
    if max(-since, until) > _LARGEST:
        raise InvalidRequest("a time is too large for the ledger")
    if not all(group.is_summed for group in group_by):
        return UsageSources(events=[(since, until)])
    by_hour, by_day = GroupBy.HOUR in group_by, GroupBy.DAY in group_by
    first = -(-since // HOUR)
    end, tail = _end_of_hours(connection, until, HOUR if by_hour else HOURS_OF_DAY * HOUR)
    if first >= end:
        return UsageSources(events=[(since, until)] if since < until else [])
    # The days from `start` to `stop` are read by day or by longer blocks, the rest by hour.
    start = end if by_hour else min(end, -(-first // HOURS_OF_DAY) * HOURS_OF_DAY)
    stop = max(start, end // HOURS_OF_DAY * HOURS_OF_DAY)
    marked = read_marks(connection).blocks
    middle = start if by_day else min(max(start, marked // HOUR), stop)
    blocks = blocks_between(start, middle, LENGTHS[1:])
    blocks += blocks_between(middle, stop, LENGTHS[1:2])
    # Totals of single hours are kept only from `kept` on.
    kept = hours_since(marked)
    left, right = min(max(first, kept), start), min(max(stop, kept), end)
    blocks += blocks_between(left, start, LENGTHS[:1]) + blocks_between(right, end, LENGTHS[:1])
    events = [(since, first * HOUR), _span(first, left), _span(stop, right), (tail, until)]
    summed = [_span(left, end)] if right == stop else [_span(left, stop), _span(right, end)]
    newest = connection.scalar(_newest_outside)
    newest = -1 if newest is None else int(newest)
    return UsageSources(
        events=[(begin, finish) for begin, finish in events if begin < finish],
        blocks=blocks,
        outside=[(begin, finish) for begin, finish in summed if begin < finish and begin <= newest],
    )


def _span(first: int, end: int) -> _Span:
    return first * HOUR, end * HOUR


def blocks_between(first: int, end: int, lengths: Sequence[int]) -> list[Blocks]:
    """Return the fewest blocks that cover the span from `first` to before `end`.

    A block begins at a multiple of its length. Each of `lengths` divides the next one, and the
    first one divides `first` and `end`.
    """
    found: list[Blocks] = []
    while first < end:
        place = max(i for i, n in enumerate(lengths) if first % n == 0 and first + n <= end)
        length = lengths[place]
        # There may be very many blocks, so one step adds all blocks up to where a longer block can
        # begin.
        stop = end - (end - first) % length
        if place + 1 < len(lengths) and first % lengths[place + 1]:
            stop = min(stop, first - first % -lengths[place + 1])
        start = first
        if found and found[-1].length == length:
            start = found.pop().first
        found.append(Blocks(length=length, first=start, end=stop))
        first = stop
    return found


def _end_of_hours(connection: Connection, until: int, length: int) -> tuple[int, int]:
    """Return the hour where totals must end, and the time from which events must be read.

    A block has `length` nanoseconds. The last block is allowed to end after `until` if no event
    lies between `until` and the block's end. A query up to the present can therefore use the total
    of the block that contains the present.
    """
    newest = connection.scalar(select(func.max(_events.time)))
    if newest is None or newest < until:
        end = 0 if newest is None else (int(newest) // length + 1) * length
        return end // HOUR, until
    following = connection.scalar(select(func.min(_events.time)).where(_events.time >= until))
    end = max(until, min(int(following or 0), -(-until // length) * length)) // HOUR
    return end, end * HOUR
