"""Simulates W-TinyLFU and LRU caches, bounded by entries, for comparison.

W-TinyLFU: Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy" (2017).
The frequencies are exact here, where a cache can only estimate them.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

_PROTECTED = 0.8
"""Of the main part, as in Caffeine."""
_SAMPLE = 10
"""Counts are halved after this many requests for each place."""


def lru_ratio(stream: Sequence[int], places: int) -> float:
    """Return the share of `stream` that an LRU of `places` would have answered."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for item in stream:
        if item in kept:
            kept.move_to_end(item)
            hits += 1
            continue
        kept[item] = None
        if len(kept) > places:
            kept.popitem(last=False)
    return hits / len(stream)


def w_tinylfu_ratio(stream: Sequence[int], places: int, *, window_share: float) -> float:
    """Return the share of `stream` that W-TinyLFU of `places`, some of them window, would have."""
    cache = _WTinyLfu(places, max(1, int(places * window_share)))
    return sum(map(cache.ask, stream)) / len(stream)


class _WTinyLfu:
    """A window in order of use, and a main part in two segments, newcomers admitted by count."""

    def __init__(self, places: int, window: int) -> None:
        self._window_places = window
        self._main_places = places - window
        self._protected_places = int(self._main_places * _PROTECTED)
        self._window: OrderedDict[int, None] = OrderedDict()
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._counts: Counter[int] = Counter()
        self._counted = 0
        self._halve_at = places * _SAMPLE

    def ask(self, item: int) -> bool:
        """Count a request for `item`, and keep it; say whether it was there."""
        self._count(item)
        if item in self._window:
            self._window.move_to_end(item)
            return True
        if item in self._protected:
            self._protected.move_to_end(item)
            return True
        if item in self._probation:
            self._promote(item)
            return True
        self._window[item] = None
        if len(self._window) > self._window_places:
            self._admit(self._window.popitem(last=False)[0])
        return False

    def _count(self, item: int) -> None:
        self._counts[item] += 1
        self._counted += 1
        if self._counted >= self._halve_at:
            self._counts = Counter(
                {i: count // 2 for i, count in self._counts.items() if count > 1}
            )
            self._counted //= 2

    def _promote(self, item: int) -> None:
        del self._probation[item]
        self._protected[item] = None
        if len(self._protected) > self._protected_places:
            self._probation[self._protected.popitem(last=False)[0]] = None

    def _admit(self, candidate: int) -> None:
        if len(self._probation) + len(self._protected) < self._main_places:
            self._probation[candidate] = None
            return
        victim = next(iter(self._probation or self._protected))
        if self._counts[candidate] > self._counts[victim]:
            (self._probation if victim in self._probation else self._protected).pop(victim)
            self._probation[candidate] = None
