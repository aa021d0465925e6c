"""Measures the memory tier without a gateway: its hit ratio, and the memory that it takes."""

import gc
import itertools
import os
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import click
from xxhash import xxh3_128_digest

from loadtests.machine import resident_bytes
from loadtests.report import show
from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.memory_tier import ENTRY_OVERHEAD_BYTES, MemoryTier

_MIB = 1024 * 1024
_CAPACITY = 64 * _MIB
_NOW = 1_000.0
_SKEW = 0.9
_PAYLOAD = 330
"""Bytes of an answer with a few labels. Answers of `_flood` have 60 to 3,000 bytes, as vectors
do."""
_ALLOWED_MIB = 96.0
_ALLOWED_POINTS = 0.03
_WINDOWS = (0.002, 0.01, 0.05, 0.2)
"""The shares of the window of W-TinyLFU that are tried."""
_PROTECTED = 0.8
"""The share of the main part of W-TinyLFU that is protected, as in Caffeine."""
_SAMPLE = 10
"""Counts of W-TinyLFU are halved after this many requests for each place."""


@click.command()
@click.option("--items", default=10_000_000, help="Distinct items that are stored.")
@click.option("--requests", default=3_000_000, help="Requests of the Zipf stream.")
@click.option("--universe", default=1_000_000, help="Items of the Zipf stream.")
def measure(*, items: int, requests: int, universe: int) -> None:
    """Measure the memory tier: its memory, and its hit ratio compared with W-TinyLFU and LRU."""
    grown, most = _flood(items)
    stream = _zipf(requests, universe=universe)
    places = _CAPACITY // (ENTRY_OVERHEAD_BYTES + _PAYLOAD)
    ours, cost = _tier_ratio(stream, places)
    lru = _lru_ratio(stream, places)
    best, share = max((_w_tinylfu_ratio(stream, places, share), share) for share in _WINDOWS)
    exact = f"W-TinyLFU, exact counts, the best window ({share:.1%})"
    show(
        f"The memory tier: Zipf {_SKEW}, {requests:,} requests for {universe:,} items",
        [
            {"cache": "memory tier", "hits": f"{ours:.1%}", "µs a request": cost * 1e6},
            {"cache": exact, "hits": f"{best:.1%}"},
            {"cache": "LRU", "hits": f"{lru:.1%}"},
        ],
        f"Each cache has {places:,} places.",
        f"{items:,} distinct items through {_CAPACITY // _MIB} MiB: RSS {grown:+.1f} MiB at the"
        f" end, {most:+.1f} at most.",
    )
    if most > _ALLOWED_MIB or ours < best - _ALLOWED_POINTS or ours <= lru:
        raise click.ClickException("a bound does not hold")


def _flood(items: int) -> tuple[float, float]:
    """Store distinct items of all sizes; return the growth of RSS at the end and at its peak."""
    tier = MemoryTier(capacity_bytes=_CAPACITY)
    chance = random.Random(3)
    gc.collect()
    began = most = _resident_mib()
    for number in range(items):
        key = _key(number)
        if tier.peek(key, _NOW) is None:
            tier.put(key, _entry(chance.choice((60, 330, 330, 330, 900, 3000)), number), _NOW)
        if number % 100_000 == 0:
            most = max(most, _resident_mib())
    ended = _resident_mib()
    return ended - began, max(most, ended) - began


def _zipf(requests: int, *, universe: int) -> list[int]:
    """Return item numbers of random requests; item n is requested in proportion to n^-0.9."""
    weights = itertools.accumulate(rank**-_SKEW for rank in range(1, universe + 1))
    return random.Random(7).choices(range(universe), cum_weights=list(weights), k=requests)


def _tier_ratio(stream: Sequence[int], places: int) -> tuple[float, float]:
    """Return the share of requests that the tier answers, and its seconds for one request."""
    tier = MemoryTier(capacity_bytes=places * (ENTRY_OVERHEAD_BYTES + _PAYLOAD))
    entry = _entry(_PAYLOAD, 0)
    hits, started = 0, time.perf_counter()
    for item in stream:
        key = _key(item)
        if tier.peek(key, _NOW) is not None:
            hits += 1
        else:
            tier.put(key, entry, _NOW)
    return hits / len(stream), (time.perf_counter() - started) / len(stream)


def _key(number: int) -> CacheKey:
    address = xxh3_128_digest(number.to_bytes(8, "little"))
    return CacheKey(address, address[::-1])


def _entry(size: int, number: int) -> CachedResult:
    payload = number.to_bytes(8, "little") * (size // 8)
    return CachedResult(payload=payload, rows=1, tokens=7, stored_at=_NOW, expires_at=_NOW + 60.0)


def _resident_mib() -> float:
    return resident_bytes(os.getpid()) / _MIB


def _lru_ratio(stream: Sequence[int], places: int) -> float:
    """Return the share of `stream` that an LRU cache of `places` entries would answer."""
    ask = lru_cache(maxsize=places)(lambda _item: None)
    for item in stream:
        ask(item)
    return ask.cache_info().hits / len(stream)


def _w_tinylfu_ratio(stream: Sequence[int], places: int, window_share: float) -> float:
    """Return the share of `stream` that a W-TinyLFU cache of `places` entries would answer."""
    cache = _WTinyLfu(places, max(1, int(places * window_share)))
    return sum(map(cache.ask, stream)) / len(stream)


class _WTinyLfu:
    """Simulates W-TinyLFU with exact frequencies; a real cache can only estimate them.

    The cache is a window (LRU), and a main part of two segments that admits the more frequent item.
    Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy" (2017).
    """

    def __init__(self, places: int, window: int) -> None:
        self._counts: Counter[int] = Counter()
        self._counted, self._most_counted = 0, places * _SAMPLE
        self._window_places, self._main_places = window, places - window
        self._window: OrderedDict[int, None] = OrderedDict()
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()

    def ask(self, item: int) -> bool:
        """Store `item`; return whether it was there already."""
        self._count(item)
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

    def _count(self, item: int) -> None:
        self._counts[item] += 1
        self._counted += 1
        if self._counted >= self._most_counted:
            halved = {each: count // 2 for each, count in self._counts.items() if count > 1}
            self._counts = Counter(halved)
            self._counted //= 2

    def _admit(self, candidate: int) -> None:
        if len(self._probation) + len(self._protected) >= self._main_places:
            segment = self._probation or self._protected
            victim = next(iter(segment))
            if self._counts[candidate] <= self._counts[victim]:
                return
            del segment[victim]
        self._probation[candidate] = None
