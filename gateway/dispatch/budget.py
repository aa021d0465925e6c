"""Bounds retries that add load to a share of first attempts, and a base rate beside."""

import math
from collections.abc import Callable

RATIO = 0.2
"""Retries per first attempt of an item."""
BASE_RATE = 10.0
"""Retries a second that are allowed at any load."""
WINDOW = 10.0
"""Time constant, in seconds, by which unused credit decays."""


class RetryBudget:
    """Credit in item attempts: earned by first attempts and by time, spent by retries."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._balance = BASE_RATE * WINDOW
        self._updated = clock()

    def earn(self, items: int) -> None:
        """Note that so many items were tried for the first time."""
        self._refresh()
        self._balance += RATIO * items

    def spend(self, items: int, *, whole: bool = False) -> int:
        """Take credit for up to `items` retries, and return for how many there is.

        For all of them or none where only the `whole` is of use.
        """
        self._refresh()
        granted = min(items, int(self._balance))
        if whole and granted < items:
            return 0
        self._balance -= granted
        return granted

    def _refresh(self) -> None:
        now = self._clock()
        elapsed, self._updated = now - self._updated, now
        # Decays towards what the base rate alone would hold.
        rest = BASE_RATE * WINDOW
        self._balance = rest + (self._balance - rest) * math.exp(-elapsed / WINDOW)
