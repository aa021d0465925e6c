"""Decides when an item is tried at a second backend as well, and bounds how often.

A hedge helps where one backend stalls now and then. It is sent once an item has waited longer than
nineteen of twenty others of its model and task did, and hedges are a bounded share of all items.
"""

import math
from collections.abc import Hashable

_SHARE = 0.95
# Latencies are counted in steps of a sixth, from a tenth of a millisecond to some minutes.
_SHORTEST = 1e-4
_STEP = math.log(7 / 6)
_STEPS = 96
# Counts are halved beyond so many, and no hedge is sent before there are a few.
_REMEMBERED = 4000
_FEW = 50
# The percentile is computed anew after so many.
_FRESH = 32
# Unused credit is kept for a burst of so many items.
_BURST = 16.0
_MOST_KINDS = 1024


class Latencies:
    """Holds the latencies of one kind of item in a decaying histogram."""

    def __init__(self) -> None:
        self._counts = [0.0] * _STEPS
        self._total = 0.0
        self._unseen = 0
        self._noted = 0.0
        self._step = 0
        self.late = math.inf
        """The seconds that nineteen of twenty items took no longer than; infinite at first."""

    def note(self, seconds: float, count: int = 1) -> None:
        """Count so many items that took so long."""
        if seconds != self._noted:  # items of one read took equally long
            step = math.log(seconds / _SHORTEST) / _STEP if seconds > _SHORTEST else 0.0
            self._noted, self._step = seconds, min(_STEPS - 1, int(step))
        self._counts[self._step] += count
        self._total += count
        self._unseen += count
        if self._unseen >= _FRESH and self._total >= _FEW:
            self._compute_late()

    def _compute_late(self) -> None:
        self._unseen = 0
        left = (1.0 - _SHARE) * self._total
        step = _STEPS - 1
        while step and left >= self._counts[step]:
            left -= self._counts[step]
            step -= 1
        self.late = _SHORTEST * math.exp((step + 1) * _STEP)
        if self._total > _REMEMBERED:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2


class Hedging:
    """Holds latencies by kind of item, and the credit for hedges: `share` for every item."""

    def __init__(self) -> None:
        self.share = 0.0
        self._credit = 0.0
        self._kinds: dict[Hashable, Latencies] = {}

    def of(self, kind: Hashable) -> Latencies:
        """Return the latencies of a kind of item."""
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            found = self._kinds[kind] = Latencies()
        return found

    def earn(self, items: int) -> None:
        """Note that so many items were tried for the first time."""
        self._credit = min(_BURST, self._credit + self.share * items)

    def spend(self, items: int) -> bool:
        """Take credit for `items` hedges, where there is enough."""
        if self._credit < items:
            return False
        self._credit -= items
        return True
