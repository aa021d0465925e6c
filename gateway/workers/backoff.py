"""Provides retry delays, and batch sizes for retries."""

import random
from collections.abc import Callable
from typing import Final

from sluicegate.gateway.telemetry.instruments import COMPONENT
from sluicegate.wire.metric_declaration import Aggregation, gauge

_FIRST: Final = 0.05
_IN_A_ROW: Final = 20


FAILURES: Final = gauge(
    "sluicegate_consecutive_failures",
    "Consecutive failures of a `part` (`shipper`, `billing`, `request_log`, `rollup`, `budgets`); "
    "0 after a success.",
    "part",
    over=Aggregation.MOST,
)(COMPONENT)
"""The series of `StoppableBackoff.failures`."""


class StoppableBackoff:
    """Computes the wait after a failure.

    The wait doubles with each consecutive failure, from 50 ms up to `longest`. It is then shortened
    by a random fraction of up to a half, so that processes that lost the same server do not all
    retry at the same time.
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
        """Count a failure; return the seconds to wait before the next call."""
        self.failures += 1
        whole = float(min(self._longest, _FIRST * 2 ** min(self.failures - 1, 16)))
        return whole * (1 - self._chance() / 2)

    def succeeded(self) -> bool:
        """Reset the count of failures; return whether there were any."""
        failed, self.failures = self.failures > 0, 0
        return failed


class BatchSize:
    """Halves the batch size after a failure, and doubles it after 20 successes in a row.

    Without smaller batches, a slow server could time out on the same large batch every time.
    """

    def __init__(self, most: int) -> None:
        self._most = self.now = most
        self._successes = 0

    def failed(self) -> None:
        """Count a failure."""
        self.now = max(1, self.now // 2)
        self._successes = 0

    def succeeded(self) -> None:
        """Count a success."""
        self._successes += 1
        if self._successes >= _IN_A_ROW:
            self.now = min(self._most, 2 * self.now)
            self._successes = 0
