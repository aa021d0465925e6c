"""Divides a span of hours or days into blocks. The database has a stored sum of each block."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_

_LISTED: Final = 1_000
"""The most values in a condition. Databases limit the number of values in a statement."""


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Describes adjacent blocks of the same length.

    `length`, `first` and `end` (exclusive) are numbers of hours or days.
    """

    length: int
    first: int
    end: int


def blocks_between(first: int, end: int, lengths: Sequence[int]) -> list[Blocks]:
    """Return the fewest blocks that cover the span from `first` to before `end`.

    A block begins at a multiple of its length. Each of `lengths` divides the next one.
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


def is_in(
    blocks: Blocks,
    length: ColumnElement[Any],
    start: ColumnElement[Any],
    *,
    of_tenants: bool = False,
) -> ColumnElement[bool]:
    """Return the SQL condition that selects the stored sums of `blocks`.

    Usually, the condition is a range of block starts. With `of_tenants`, the query selects tenants,
    too, and the condition lists each start, if there are at most a thousand. The database can then
    find each tenant's rows with the primary key, which begins with the columns length, start and
    tenant.
    """
    starts = range(blocks.first, blocks.end, blocks.length)
    if of_tenants and len(starts) <= _LISTED:
        return and_(length == blocks.length, start.in_(starts))
    return and_(length == blocks.length, start >= blocks.first, start < blocks.end)
