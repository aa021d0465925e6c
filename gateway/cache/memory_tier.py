"""Implements the memory tier of the result cache. Its size in bytes is limited.

The algorithm is W-TinyLFU with a clock (Einziger et al., 2017). New entries enter a window of 1 %
of the capacity. When an entry leaves the window, it enters the main part only if it was seen more
often than the entries that it would evict.

Reads and writes of an entry are first counted in the entry's node. The node's count is added to a
frequency sketch when the clock hand passes the node. It is also added when the entry leaves the
window while the main part is full. A cache with room for all entries therefore never uses the
sketch. Decision 0004 explains why no library is used.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.cache.frequency_sketch import FrequencySketch
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.statistics import MemoryStatistics

ENTRY_OVERHEAD_BYTES = 512
"""The measured memory that an entry takes in addition to its payload: Python objects, a place in
the table and a place in the queue."""
_TYPICAL_ENTRY_BYTES = 768
_WINDOW_SHARE = 0.01
_MAX_SECOND_CHANCES = 16


class _Node(msgspec.Struct, gc=False):
    """Holds an entry. `hits` counts reads since the clock hand last passed the node.

    `is_new` is true until the sketch has counted the write of the entry.
    """

    address: bytes
    tag: bytes
    entry: CachedResult
    cost: int
    hits: int = 0
    in_main: bool = False
    is_new: bool = True


class MemoryTier:
    """Holds this worker's entries. A `capacity_bytes` of 0 disables the memory tier."""

    def __init__(self, *, capacity_bytes: int) -> None:
        self._set_capacity(capacity_bytes)
        self._sketch = FrequencySketch(capacity_bytes // _TYPICAL_ENTRY_BYTES)
        self._nodes: dict[bytes, _Node] = {}
        self.has: Callable[[bytes], bool] = self._nodes.__contains__
        """Returns whether an entry is stored at an address. This does not count as a read."""
        self._window: deque[_Node] = deque()
        self._main: deque[_Node] = deque()
        self._window_bytes = 0
        self._main_bytes = 0
        self.misses = 0
        """The number of reads that found nothing. If a caller skips a read because `has` returned
        false, the caller itself increments this number."""
        self._hits = self._mismatches = self._evicted = self._refused = 0

    def peek(self, key: CacheKey, now: float) -> CachedResult | None:
        """Return the entry of `key`, unless it has expired at `now`."""
        node = self._nodes.get(key.address)
        if node is None:
            self.misses += 1
            return None
        if node.tag != key.tag:
            self._mismatches += 1
            return None
        entry = node.entry
        if entry.expires_at <= now:
            self.misses += 1
            return None
        node.hits += 1
        self._hits += 1
        return entry

    def entry_of(self, key: CacheKey) -> CachedResult | None:
        """Return the entry of `key`, even if it has expired. The read is not counted."""
        node = self._nodes.get(key.address)
        return node.entry if node is not None and node.tag == key.tag else None

    def put(self, key: CacheKey, entry: CachedResult, now: float) -> None:
        """Store `entry` if it is admitted. It replaces an entry at the same address."""
        if self._capacity:
            self.put_all([(key, entry)], now)
        else:
            self._refused += 1

    def put_all(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        """Store the entries that have not expired and are admitted."""
        if not self._capacity:
            self._refused += sum([entry.expires_at > now for _, entry in entries])
            return
        nodes, largest = self._nodes, self._main_capacity
        for key, entry in entries:
            if entry.expires_at <= now:
                continue
            cost = ENTRY_OVERHEAD_BYTES + len(entry.payload) + len(entry.detail)
            if cost > largest:
                self._refused += 1
                continue
            address, tag = key
            node = nodes.get(address)
            if node is None:
                node = nodes[address] = _Node(address, tag, entry, cost)
                self._window.append(node)
                self._window_bytes += cost
            else:
                self._replace(node, key, entry, cost)
        self._shrink_window(now)

    def _shrink_window(self, now: float) -> None:
        """Move the oldest entries from the window to the main part, if they are admitted."""
        while self._window_bytes > self._window_capacity:
            candidate = self._window.popleft()
            self._window_bytes -= candidate.cost
            if self._main_bytes + candidate.cost > self._main_capacity:
                self._contest(candidate, now)
            else:  # this is the code of `_admit`, inlined to save a call
                candidate.in_main = True
                self._main.append(candidate)
                self._main_bytes += candidate.cost
        if self._main_bytes > self._main_capacity:
            self._make_room(now)

    @property
    def capacity_bytes(self) -> int:
        """The most bytes that all entries together may use."""
        return self._capacity

    def resize(self, capacity_bytes: int, now: float) -> None:
        """Change the capacity, and drop entries that no longer fit.

        Dropping an entry takes one or two microseconds. If the capacity grows, the frequency sketch
        starts anew.
        """
        if capacity_bytes > self._capacity:
            self._sketch = FrequencySketch(capacity_bytes // _TYPICAL_ENTRY_BYTES)
        self._set_capacity(capacity_bytes)
        while self._window_bytes > self._window_capacity:
            candidate = self._window.popleft()
            self._window_bytes -= candidate.cost
            self._admit(candidate)
        self._make_room(now)

    def statistics(self) -> MemoryStatistics:
        """Return sizes and counts for metrics and tests."""
        return MemoryStatistics(
            entries=len(self._nodes),
            used_bytes=self._window_bytes + self._main_bytes,
            capacity_bytes=self._capacity,
            hits=self._hits,
            misses=self.misses,
            mismatches=self._mismatches,
            evicted=self._evicted,
            refused=self._refused,
        )

    def _set_capacity(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._window_capacity = int(capacity_bytes * _WINDOW_SHARE)
        self._main_capacity = capacity_bytes - self._window_capacity

    def _replace(self, node: _Node, key: CacheKey, entry: CachedResult, cost: int) -> None:
        if node.in_main:
            self._main_bytes += cost - node.cost
        else:
            self._window_bytes += cost - node.cost
        node.tag, node.entry, node.cost = key.tag, entry, cost
        self._sketch.add(key.address, 1)

    def _contest(self, candidate: _Node, now: float) -> None:
        """Move `candidate` to the main part, or drop it."""
        rivals = 0
        victims: list[_Node] = []
        room = self._main_capacity - self._main_bytes - candidate.cost
        frequency = self._frequency(candidate) if room < 0 else 0
        while room < 0:
            victim = self._next_victim(now)
            victims.append(victim)
            room += victim.cost
            if victim.entry.expires_at > now:
                rivals += self._frequency(victim)
            if rivals >= frequency:
                self._main.extend(victims)
                del self._nodes[candidate.address]
                self._refused += 1
                return
        for victim in victims:
            self._evict(victim)
        self._admit(candidate)

    def _admit(self, node: _Node) -> None:
        node.in_main = True
        self._main.append(node)
        self._main_bytes += node.cost

    def _make_room(self, now: float) -> None:
        """Evict entries until the remaining entries fit into the main part.

        This is needed after a larger entry has replaced an entry.
        """
        while self._main_bytes > self._main_capacity:
            self._evict(self._next_victim(now))

    def _next_victim(self, now: float) -> _Node:
        """Remove and return the next node under the clock hand.

        Skip nodes that were read recently.
        """
        main = self._main
        for _ in range(_MAX_SECOND_CHANCES):
            node = main.popleft()
            if not node.hits or node.entry.expires_at <= now:
                return node
            self._frequency(node)
            main.append(node)
        return main.popleft()

    def _frequency(self, node: _Node) -> int:
        """Return the estimated count of `node`, including reads that are not yet in the sketch."""
        unknown = node.hits + node.is_new
        if not unknown:
            return self._sketch.estimate(node.address)
        node.hits, node.is_new = 0, False
        return self._sketch.add(node.address, unknown)

    def _evict(self, node: _Node) -> None:
        self._main_bytes -= node.cost
        self._evicted += 1
        del self._nodes[node.address]
