"""Waiting that a stop ends at once, and longer waits while something stays broken."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

_FIRST: Final = 0.05


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait `seconds`, or until `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


class Backoff:
    """Doubles from 50 ms to `longest` with each failure in a row, less up to half by chance.

    By chance, so that processes which lost the same server do not come back to it all at once.
    """

    def __init__(
        self,
        *,
        longest: float = 2.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._longest = longest
        self._chance = chance
        self.failures = 0

    def failed(self) -> float:
        """Count a failure; return the seconds to wait."""
        self.failures += 1
        whole = float(min(self._longest, _FIRST * 2 ** min(self.failures - 1, 16)))
        return whole * (1 - self._chance() / 2)

    def succeeded(self) -> bool:
        """Forget the failures; return whether there were any."""
        failed, self.failures = self.failures > 0, 0
        return failed
