"""Keeps a bounded number of recently used values."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentCache(Generic[K, V]):
    """Keeps at most `most` values that were stored or used last, in two generations.

    When the newer generation is full, it becomes the older one. Values that nobody used since the
    last change are dropped. So keys that are used once do not push out keys that return.
    """

    def __init__(self, most: int) -> None:
        self._most = most // 2
        self.newer: dict[K, V] = {}
        """To be looked at before `get` where a call counts; replaced now and then."""
        self.older: dict[K, V] = {}
        """As `newer`: what is in neither is not to be asked for by `get`."""

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or `None`."""
        found = self.newer.get(key)
        if found is None:
            found = self.older.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        """Store a value."""
        if len(self.newer) >= self._most:
            self.newer, self.older = {}, self.newer
        self.newer[key] = value

    def clear(self) -> None:
        """Drop everything."""
        self.newer.clear()
        self.older.clear()
