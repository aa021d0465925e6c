"""Estimates how often an address was seen lately, in a fixed number of bytes."""

import struct

_COUNTER_MAXIMUM = 15
_HALVES = bytes(value >> 1 for value in range(256))
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

    def add(self, address: bytes, times: int) -> int:
        """Count `address` so many `times`, and return about how often it was counted."""
        mask = self._mask
        first, second, third, fourth = self._rows
        a: int
        b: int
        c: int
        d: int
        a, b, c, d = _WORDS.unpack(address)
        a, b, c, d = a & mask, b & mask, c & mask, d & mask
        most = _COUNTER_MAXIMUM
        counts = (first[a] + times, second[b] + times, third[c] + times, fourth[d] + times)
        least = min(counts)
        first[a], second[b], third[c], fourth[d] = (
            counts if max(counts) <= most else [min(count, most) for count in counts]
        )
        self._counted += times
        if self._counted >= self._halve_at:
            self._halve()
            return self.estimate(address)
        return min(least, most)

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
        """Forget half, so that what was popular once gives way.

        What was counted beyond the bound is no reason to halve again: it may be one address, whose
        counters hold 15 of it.
        """
        for row in self._rows:
            row[:] = row.translate(_HALVES)
        self._counted = min(self._counted, self._halve_at) // 2
