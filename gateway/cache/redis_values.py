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


def read_values(reply: object, count: int) -> list[bytes | None] | None:
    """Return the values that `MGET` of so many keys replied with; `None` for any other reply."""
    if isinstance(reply, list) and len(reply) == count and _KINDS.issuperset(map(type, reply)):
        return reply
    return None


def is_much(values: Sequence[bytes | None]) -> bool:
    """Tell whether to change `values` is too much for the event loop."""
    return sum(len(value) for value in values if value) >= _MUCH


async def each(change: Callable[[_Value], _Value], values: Sequence[_Value]) -> list[_Value]:
    """Return `values`, each changed; in a thread where there is much to do."""
    if not is_much(values):
        return list(map(change, values))
    return await asyncio.to_thread(lambda: list(map(change, values)))


def unpacked(value: bytes | None) -> bytes | None:
    """Return a value as it was before it was packed; nothing stays nothing."""
    return None if value is None else unpack(value)
