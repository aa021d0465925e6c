"""Simulates W-TinyLFU and LRU caches with a maximum number of entries, for comparison.

W-TinyLFU: Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy" (2017).
In this simulation, the frequencies are exact; a real cache can only estimate them.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

_PROTECTED = 0.8
"""The share of the main part that is protected, as in Caffeine."""
_SAMPLE = 10
"""Counts are halved after this many requests for each place."""


def lru_ratio(stream: Sequence[int], places: int) -> float:
    """Return the share of `stream` that an LRU cache of `places` entries would answer."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for item in stream:
        hits += item in kept
        kept[item] = None
        kept.move_to_end(item)
        if len(kept) > places:
            kept.popitem(last=False)
    return hits / len(stream)


def w_tinylfu_ratio(stream: Sequence[int], places: int, *, window_share: float) -> float:
    """Return the share of `stream` that a W-TinyLFU cache of `places` entries would answer.

    The share `window_share` of the entries is the window.
    """
    counts: Counter[int] = Counter()
    cache = _WTinyLfu(places, max(1, int(places * window_share)), counts)
    hits = counted = 0
    for item in stream:
        counts[item] += 1
        counted += 1
        if counted >= places * _SAMPLE:
            halved = {each: count // 2 for each, count in counts.items() if count > 1}
            counts.clear()
            counts.update(halved)
            counted //= 2
        hits += cache.ask(item)
    return hits / len(stream)


class _WTinyLfu:
    """A window (LRU), and a main part of two segments that admits the more frequent item."""

    def __init__(self, places: int, window: int, counts: Counter[int]) -> None:
        self._counts = counts
        self._window_places, self._main_places = window, places - window
        self._window: OrderedDict[int, None] = OrderedDict()
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()

    def ask(self, item: int) -> bool:
        """Store `item`; return whether it was there already."""
        for kept in (self._window, self._protected):
            if item in kept:
                kept.move_to_end(item)
                return True
        if item in self._probation:
            del self._probation[item]
            self._protected[item] = None
            if len(self._protected) > int(self._main_places * _PROTECTED):
                self._probation[self._protected.popitem(last=False)[0]] = None
            return True
        self._window[item] = None
        if len(self._window) > self._window_places:
            self._admit(self._window.popitem(last=False)[0])
        return False

    def _admit(self, candidate: int) -> None:
        if len(self._probation) + len(self._protected) >= self._main_places:
            segment = self._probation or self._protected
            victim = next(iter(segment))
            if self._counts[candidate] <= self._counts[victim]:
                return
            del segment[victim]
        self._probation[candidate] = None
