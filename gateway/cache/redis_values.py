"""Values as Redis replies with them, and changed many at a time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.cache.entry import unpack

_MUCH = 64 * 1024
"""Bytes from which values are packed and unpacked in a thread: about a millisecond of work."""
_KINDS = frozenset({bytes, type(None)})
"""What values are, and keys without one."""
_Value = TypeVar("_Value", bytes, bytes | None)


def read_values(reply: object, count: int) -> list[bytes | None]:
    """Return the values that `MGET` of so many keys replied with.

    Raises:
        ConnectionError: it is an error, or no reply to that.
    """
    if isinstance(reply, list) and len(reply) == count and _KINDS.issuperset(map(type, reply)):
        return reply
    raise ConnectionError("Redis refused, or replied with something else")


async def each(change: Callable[[_Value], _Value], values: Sequence[_Value]) -> list[_Value]:
    """Return `values`, each changed; in a thread where there is much to do."""
    if sum(len(value) for value in values if value) < _MUCH:
        return list(map(change, values))
    return await asyncio.to_thread(lambda: list(map(change, values)))


def unpacked(value: bytes | None) -> bytes | None:
    """Return a value as it was before it was packed; nothing stays nothing."""
    return None if value is None else unpack(value)
