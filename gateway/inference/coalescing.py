"""Coalesces equal items that are open at once, so that each is computed once."""

from collections.abc import Sequence

import msgspec

from gateway.cache.key import CacheKey
from gateway.dispatch.work import OpenItem

# Part of the tag of items with `truncate: false`; no cache key has it.
_WHOLE = b"whole"


class FlightStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the items in flight now, and the items that led or joined since the start."""

    in_flight: int
    led: int
    joined: int


class Flights:
    """Holds the items that this worker computes, by key.

    Another request may settle an item after the leader has read the cache. If computing the item
    twice matters, the leader reads memory once more after `lead`.
    """

    def __init__(self) -> None:
        self._items: dict[CacheKey, OpenItem] = {}
        self._led = 0
        self._joined = 0

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._items

    def join(self, key: CacheKey, *, truncate: bool = True) -> OpenItem | None:
        """Join the open item of `key`, or return `None` if the caller may `lead` a new one.

        Requests that refuse to `truncate` join only each other.
        """
        item = self._items.get(key if truncate else _whole(key))
        if item is not None:
            self._joined += 1
            item.followers += 1
        return item

    def lead(self, items: Sequence[OpenItem]) -> bool:
        """Let others join the items of a request.

        If a key is repeated or has an open item, return `False` instead.
        """
        if len(items) == 1:
            item = items[0]
            key = item.key if item.work.truncate else _whole(item.key)
            if key in self._items:
                return False
            self._items[key] = item
            self._led += 1
            return True
        new = {_flight_key(item): item for item in items}
        if len(new) < len(items) or not self._items.keys().isdisjoint(new):
            return False
        self._items.update(new)
        self._led += len(items)
        return True

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """Let nobody join items that were settled."""
        for item in items:
            key = item.key if item.work.truncate else _whole(item.key)
            if self._items.get(key) is item:
                del self._items[key]

    def statistics(self) -> FlightStatistics:
        """Return counts for metrics and tests."""
        return FlightStatistics(in_flight=len(self._items), led=self._led, joined=self._joined)


def _flight_key(item: OpenItem) -> CacheKey:
    return item.key if item.work.truncate else _whole(item.key)


def _whole(key: CacheKey) -> CacheKey:
    return CacheKey(key.address, key.tag + _WHOLE)
