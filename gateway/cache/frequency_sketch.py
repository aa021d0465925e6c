"""Estimates how often an address was seen lately, in a fixed number of bytes."""

import struct
from collections.abc import Sequence

_COUNTER_MAXIMUM = 15
_HALVES = bytes(value >> 1 for value in range(256))
_NEXT = bytes([*range(1, _COUNTER_MAXIMUM + 1), _COUNTER_MAXIMUM])
"""The counter after each counter."""
_WORDS = struct.Struct("<4I")


class FrequencySketch:
    """A count-min sketch of four rows, halved whenever ten times `entries` were counted.

    A row has four counters for each entry of the cache, so that what is seen once among many
    others is not taken for more. Addresses are hashes already, so their own bytes choose the
    counters. Between two halvings an estimate is never too low, short of the maximum of 15.
    """

    def __init__(self, entries: int) -> None:
        entries = max(16, entries)
        width = 1 << (4 * entries - 1).bit_length()
        self._mask = width - 1
        self._rows = tuple(bytearray(width) for _ in range(4))
        self._counted = 0
        self._halve_at = 10 * entries

    def add_each(self, addresses: Sequence[bytes]) -> None:
        """Count each of `addresses` once, as `add` does in twice the time."""
        mask, after, unpack = self._mask, _NEXT, _WORDS.unpack
        first, second, third, fourth = self._rows
        a: int
        b: int
        c: int
        d: int
        for address in addresses:
            a, b, c, d = unpack(address)
            first[a & mask] = after[first[a & mask]]
            second[b & mask] = after[second[b & mask]]
            third[c & mask] = after[third[c & mask]]
            fourth[d & mask] = after[fourth[d & mask]]
        self._counted += len(addresses)
        if self._counted >= self._halve_at:
            self._halve()

    def add(self, address: bytes, times: int) -> None:
        """Count `address` so many `times`."""
        mask = self._mask
        for row, word in zip(self._rows, _WORDS.unpack(address), strict=True):
            place = word & mask
            row[place] = min(row[place] + times, _COUNTER_MAXIMUM)
        self._counted += times
        if self._counted >= self._halve_at:
            self._halve()

    def estimate(self, address: bytes) -> int:
        """Return about how often `address` was counted."""
        mask = self._mask
        first, second, third, fourth = self._rows
        a: int
        b: int
        c: int
        d: int
        a, b, c, d = _WORDS.unpack(address)
        return min(first[a & mask], second[b & mask], third[c & mask], fourth[d & mask])

    def _halve(self) -> None:
        """Forget half, so that what was popular once gives way."""
        for row in self._rows:
            row[:] = row.translate(_HALVES)
        self._counted //= 2
