"""Measures how fast an interpreter runs Python, because its build options do not always say so.

Debian builds its interpreter with profile-guided optimization, but `sysconfig` does not show it.
"""

import statistics
import time
from collections.abc import Callable

import xxhash

_ROUNDS, _STEPS = 200, 500
# A block fits in the first-level cache.
_BLOCK, _BLOCKS = bytes(1 << 14), 4


class _Entry:
    """The object that a step of the loop changes."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        """Add a number; return the sum."""
        self.count += number
        return self.count


def interpreter_speed() -> int:
    """Return how many steps of a fixed Python loop take as long as xxHash takes for a MiB.

    The ratio compares interpreters on one machine under one load. A change of the clock rate
    changes both times alike, and xxHash's compiled code does not depend on the interpreter. Slices
    of the loop and of xxHash take turns; the result is the median, rounded to tens. A busy
    neighbour core that shares units with this core slows the loop by a third more than xxHash.
    """
    hashed = len(_BLOCK) * _BLOCKS / (1 << 20)
    rates = (_STEPS / _seconds(_loop) * _seconds(_hash) / hashed for _ in range(_ROUNDS))
    return 10 * round(statistics.median(rates) / 10)


def _seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _hash() -> None:
    for _ in range(_BLOCKS):
        xxhash.xxh64_digest(_BLOCK)


def _loop() -> None:
    # As in a gateway: calls, attributes, mappings, strings and small numbers.
    entries: dict[str, _Entry] = {}
    for number in range(_STEPS):
        key = f"entry {number % 50}"
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = _Entry()
        if entry.add(number & 7) > 100:
            entry.count = 0
