"""Measures the memory tier alone: its hit ratio and the memory it takes.

theine and cachebox are measured beside it where they are installed.
"""

import gc
import importlib
import itertools
import os
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import click
import msgspec
from xxhash import xxh3_128_digest

from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey
from gateway.cache.memory_tier import ENTRY_OVERHEAD_BYTES, MemoryTier
from loadtests.machine import resident_bytes
from loadtests.report import heading, print_table
from loadtests.w_tinylfu import lru_ratio, w_tinylfu_ratio

_MIB = 1024 * 1024
_CAPACITY = 64 * _MIB
_NOW = 1_000.0
_SKEW = 0.9
_WINDOWS = (0.002, 0.01, 0.05, 0.2)
_PAYLOAD = 330
"""Bytes of an answer with a few labels; those of the flood are 60 to 3,000, as vectors are."""
_ALLOWED_MIB = 96.0
_ALLOWED_POINTS = 0.03


class CacheUnderTest(Protocol):
    """A cache that looks an item up and stores it on a miss."""

    def ask(self, item: int) -> bool:
        """Say whether `item` was there."""
        ...


class CacheMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """The hit ratio of a cache on a stream, and the seconds per request."""

    what: str
    ratio: float
    cost: float | None = None


@click.command()
@click.option("--items", default=10_000_000, help="Distinct items put through.")
@click.option("--requests", default=3_000_000, help="Of the Zipf stream.")
@click.option("--universe", default=1_000_000, help="Items of the Zipf stream.")
def measure(*, items: int, requests: int, universe: int) -> None:
    """Print both tables; end with an error where a bound does not hold."""
    heading("The memory tier")
    grown, most = flood(items)
    print(
        f"{items:,} distinct items through {_CAPACITY // _MIB} MiB: RSS {grown:+.1f} MiB at the"
        f" end, {most:+.1f} at most\n"
    )
    stream = zipf(requests, universe=universe, seed=7)
    places = _CAPACITY // (ENTRY_OVERHEAD_BYTES + _PAYLOAD)
    kept = compare(stream, places)
    print(f"Zipf {_SKEW}, {requests:,} requests for {universe:,} items, {places:,} places\n")
    print_table(
        ("cache", "hits", "µs a request"),
        [
            (line.what, f"{line.ratio:.1%}", f"{line.cost * 1e6:.2f}" if line.cost else "-")
            for line in kept
        ],
    )
    ours, best, lru = (line.ratio for line in kept[:3])
    if most > _ALLOWED_MIB or ours < best - _ALLOWED_POINTS or ours <= lru:
        sys.exit("a bound does not hold")


def flood(items: int) -> tuple[float, float]:
    """Put distinct items of all sizes through a tier; return the growth of RSS, and its most."""
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


def zipf(requests: int, *, universe: int, seed: int) -> list[int]:
    """Return items asked for by popularity: the n-th is asked for in proportion to n^-0.9."""
    weights = list(itertools.accumulate(rank**-_SKEW for rank in range(1, universe + 1)))
    chance = random.Random(seed)
    return [bisect_left(weights, chance.random() * weights[-1]) for _ in range(requests)]


def compare(stream: Sequence[int], places: int) -> list[CacheMeasurement]:
    """Return what the tier, the best W-TinyLFU, LRU and what is installed have of `stream`."""
    ours = _run("memory tier", _OurTier(places), stream)
    best, share = max(
        (w_tinylfu_ratio(stream, places, window_share=share), share) for share in _WINDOWS
    )
    return [
        ours,
        CacheMeasurement(
            what=f"W-TinyLFU, exact counts, the best window ({share:.1%})", ratio=best
        ),
        CacheMeasurement(what="LRU", ratio=lru_ratio(stream, places)),
        *(_run(name, made(places), stream) for name, made in _installed().items()),
    ]


class _OurTier:
    def __init__(self, places: int) -> None:
        self._tier = MemoryTier(capacity_bytes=places * (ENTRY_OVERHEAD_BYTES + _PAYLOAD))
        self._entry = _entry(_PAYLOAD, 0)

    def ask(self, item: int) -> bool:
        key = _key(item)
        if self._tier.peek(key, _NOW) is not None:
            return True
        self._tier.put(key, self._entry, _NOW)
        return False


class _Mapping:
    """A library's cache with `get` and `insert` or `set`."""

    def __init__(
        self, get: Callable[[bytes], object], keep: Callable[[bytes, CachedResult], Any]
    ) -> None:
        self._get = get
        self._keep = keep
        self._entry = _entry(_PAYLOAD, 0)

    def ask(self, item: int) -> bool:
        key = _key(item).address
        if self._get(key) is not None:
            return True
        self._keep(key, self._entry)
        return False


def _installed() -> dict[str, Callable[[int], CacheUnderTest]]:
    """Return what makes the caches of libraries that are installed."""
    made: dict[str, Callable[[int], CacheUnderTest]] = {}
    try:
        theine = importlib.import_module("theine")
        cachebox = importlib.import_module("cachebox")
    except ImportError:
        print("theine and cachebox are not installed, and not measured\n")
        return made

    def of_theine(places: int) -> CacheUnderTest:
        cache = theine.Cache(places)
        return _Mapping(lambda key: cache.get(key)[0], cache.set)

    def of_cachebox(kind: str) -> Callable[[int], CacheUnderTest]:
        def make(places: int) -> CacheUnderTest:
            cache = getattr(cachebox, kind)(places)
            return _Mapping(cache.get, cache.insert)

        return make

    made["theine (W-TinyLFU)"] = of_theine
    made["cachebox LRU"] = of_cachebox("LRUCache")
    made["cachebox LFU"] = of_cachebox("LFUCache")
    return made


def _run(what: str, cache: CacheUnderTest, stream: Sequence[int]) -> CacheMeasurement:
    started = time.perf_counter()
    hits = sum(map(cache.ask, stream))
    took = time.perf_counter() - started
    return CacheMeasurement(what=what, ratio=hits / len(stream), cost=took / len(stream))


def _key(number: int) -> CacheKey:
    address = xxh3_128_digest(number.to_bytes(8, "little"))
    return CacheKey(address, address[::-1])


def _entry(size: int, number: int) -> CachedResult:
    payload = number.to_bytes(8, "little") * (size // 8)
    return CachedResult(payload=payload, rows=1, tokens=7, stored_at=_NOW, expires_at=_NOW + 60.0)


def _resident_mib() -> float:
    return resident_bytes(os.getpid()) / _MIB
