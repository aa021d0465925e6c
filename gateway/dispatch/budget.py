"""How much may be tried again: a share of what was tried first, and a little more."""

import math
from collections.abc import Callable

RATIO = 0.2
"""Items tried again per item tried first."""
BASE_RATE = 10.0
"""Items a second that may be tried again whatever the load."""
WINDOW = 10.0
"""Seconds after which credit that was not used is mostly gone."""


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
