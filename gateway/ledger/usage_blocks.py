"""Divides a time into blocks of hours or days, each of which has sums of its own."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_

_LISTED: Final = 1_000
"""Databases limit the number of values in a statement."""


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Names blocks of one length that follow on each other, by the hours or days they begin at."""

    length: int
    first: int
    end: int


def blocks_between(first: int, end: int, lengths: Sequence[int]) -> list[Blocks]:
    """Return the fewest blocks of `lengths` that make up what lies from `first` to before `end`.

    Each block begins at a multiple of its length; each length is a multiple of the one before.
    """
    found: list[Blocks] = []
    while first < end:
        place = max(i for i, n in enumerate(lengths) if first % n == 0 and first + n <= end)
        length = lengths[place]
        # Up to where a longer one may begin, at once: there may be centuries of hours.
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
    """Return the condition of the rows of `blocks`; `of_tenants` where only some tenants are read.

    The key begins with length and start, so that a few tenants are found block by block, all in a
    range.
    """
    starts = range(blocks.first, blocks.end, blocks.length)
    if of_tenants and len(starts) <= _LISTED:
        return and_(length == blocks.length, start.in_(starts))
    return and_(length == blocks.length, start >= blocks.first, start < blocks.end)
