"""Estimates how often an address was seen recently, in constant memory."""

import struct

_COUNTER_MAXIMUM = 15
_HALVES = bytes(value >> 1 for value in range(256))
_WORDS = struct.Struct("<4I")


class FrequencySketch:
    """A count-min sketch with four rows. All counters are halved after `10 * entries` additions.

    A row has four counters for each entry that the cache can hold. Therefore, collisions rarely
    make an estimate too high. Addresses are hashes, so their bytes select the counters directly. A
    counter stops at 15. Only this maximum and the halving can make an estimate too low.
    """

    def __init__(self, entries: int) -> None:
        entries = max(16, entries)
        width = 1 << (4 * entries - 1).bit_length()
        self._mask = width - 1
        self._rows = tuple(bytearray(width) for _ in range(4))
        self._counted = 0
        self._halve_at = 10 * entries

    def add(self, address: bytes, times: int) -> int:
        """Add `times` to the count of `address`, and return the estimated count."""
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
        """Return the estimated count of `address`."""
        mask = self._mask
        first, second, third, fourth = self._rows
        a: int
        b: int
        c: int
        d: int
        a, b, c, d = _WORDS.unpack(address)
        return min(first[a & mask], second[b & mask], third[c & mask], fourth[d & mask])

    def _halve(self) -> None:
        """Halve all counters, so that recent reads weigh more than older reads.

        Before the halving, `_counted` is limited to the threshold. Counts beyond the threshold may
        all come from a single address, whose counters stop at 15.
        """
        for row in self._rows:
            row[:] = row.translate(_HALVES)
        self._counted = min(self._counted, self._halve_at) // 2
