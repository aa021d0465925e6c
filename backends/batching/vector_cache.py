"""Caches vectors in memory, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from sluicegate.backends.types import FloatArray

K = TypeVar("K")
# Bytes of Python objects per cache entry, without the key's texts and the vectors.
_ENTRY_BYTES = 400


class VectorCache(Generic[K]):
    """Caches the most recently used vectors, up to `max_bytes`.

    `key_bytes` returns the memory that the texts of a key take.
    """

    def __init__(self, *, max_bytes: int, key_bytes: Callable[[K], int]) -> None:
        self._max_bytes = max_bytes
        self._key_bytes = key_bytes
        self._values: OrderedDict[K, FloatArray] = OrderedDict()
        self.size_bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> FloatArray | None:
        """Return cached vectors, or `None`."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def holds(self, key: K) -> bool:
        """Return whether vectors are cached; this does not count as a use."""
        return key in self._values

    def put(self, key: K, value: FloatArray) -> None:
        """Add vectors; evict the least recently used vectors if the cache is full."""
        size = self._size(key, value)
        if key in self._values or size > self._max_bytes:
            return
        self._values[key] = value
        self.size_bytes += size
        while self.size_bytes > self._max_bytes:
            self.size_bytes -= self._size(*self._values.popitem(last=False))
            self.evicted += 1

    def _size(self, key: K, value: FloatArray) -> int:
        return value.nbytes + self._key_bytes(key) + _ENTRY_BYTES
