"""Decides which stored sums and which single events a query of usage reads."""

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection, func, select

from gateway.errors import InvalidRequest
from gateway.ledger import schema
from gateway.ledger.types import GroupBy
from gateway.ledger.usage_blocks import Blocks, blocks_between
from gateway.ledger.usage_hours import HOUR_LENGTHS, summed_since
from gateway.ledger.usage_marks import DAY, HOUR, read_marks
from gateway.ledger.usage_sums import LENGTHS

_events: Final = schema.usage_events.c
_LARGEST: Final = 2**63 - 1
_Span = tuple[int, int]  # nanoseconds: the start, and the end (exclusive)


class UsageSources(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the events and the stored sums that together cover a time span.

    `events` holds the spans whose single events are read. `days` and `hours` hold the blocks whose
    stored sums are read. Spans and blocks do not overlap.
    """

    events: list[_Span]
    days: list[Blocks] = []
    hours: list[Blocks] = []


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
    marks = read_marks(connection)
    first, end = -(-since // DAY), min(until, marks.days) // DAY
    days, rest = [], [(since, until)]
    if first < end and GroupBy.HOUR not in group_by:
        days = blocks_between(first, end, (1,) if GroupBy.DAY in group_by else LENGTHS)
        rest = [(since, first * DAY), (end * DAY, until)]
    events, hours = [], []
    lengths = HOUR_LENGTHS[:1] if GroupBy.HOUR in group_by else HOUR_LENGTHS
    whole_since = -(-summed_since(connection, marks) // HOUR)
    for start, stop in rest:
        first = max(-(-start // HOUR), whole_since)
        end, tail = _end_of_hours(connection, stop, lengths[-1] * HOUR)
        if start < stop and first < end:
            hours += blocks_between(first, end, lengths)
            events += [(start, first * HOUR), (tail, stop)]
        else:
            events.append((start, stop))
    events = [(start, stop) for start, stop in events if start < stop]
    return UsageSources(events=events, days=days, hours=hours)


def _end_of_hours(connection: Connection, until: int, length: int) -> tuple[int, int]:
    """Return the hour where stored sums must end, and the time from which events must be read.

    A block has `length` nanoseconds. The last block is allowed to end after `until` if no event
    lies between `until` and the block's end. A query up to the present can therefore use the sum of
    the block that contains the present.
    """
    newest = connection.scalar(select(func.max(_events.time)))
    if newest is None or newest < until:
        end = 0 if newest is None else (int(newest) // length + 1) * length
        return end // HOUR, until
    following = connection.scalar(select(func.min(_events.time)).where(_events.time >= until))
    end = max(until, min(int(following or 0), -(-until // length) * length)) // HOUR
    return end, end * HOUR
