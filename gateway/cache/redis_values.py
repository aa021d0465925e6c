"""Checks and converts the values that Redis replies with, in a thread where they are large."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.cache.entry import unpack

_MUCH = 64 * 1024
"""Bytes from which values are packed and unpacked in a thread: about a millisecond of work."""
_KINDS = frozenset({bytes, type(None)})
"""What values are, and keys without one."""
_Value = TypeVar("_Value", bytes, bytes | None)


def read_values(reply: object, count: int) -> list[bytes | None] | None:
    """Return the values that `MGET` of so many keys replied with; `None` for any other reply."""
    if isinstance(reply, list) and len(reply) == count and _KINDS.issuperset(map(type, reply)):
        return reply
    return None


def is_large(values: Sequence[bytes | None]) -> bool:
    """Tell whether converting `values` would hold the event loop."""
    return sum(len(value) for value in values if value) >= _MUCH


async def map_values(change: Callable[[_Value], _Value], values: Sequence[_Value]) -> list[_Value]:
    """Return `change` of each value; computed in a thread where they are large."""
    if not is_large(values):
        return list(map(change, values))
    return await asyncio.to_thread(lambda: list(map(change, values)))


def unpack_or_none(value: bytes | None) -> bytes | None:
    """Return the unpacked value, or `None` for `None`."""
    return None if value is None else unpack(value)
