"""Rolls up old usage events of the ledger, in the billing process."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gateway.errors import GatewayError
from gateway.workers.backoff import BatchSize, StoppableBackoff, pause

_ROWS: Final = 1000
_SECOND: Final = 1_000_000_000
_LONGEST: Final = 1e9
"""Seconds of `keep` that switch the roll-up off: longer than there have been events."""
_log = logging.getLogger(__name__)


class UsageStore(Protocol):
    """Stores usage events; calls block."""

    def add_up(self, *, before: int, limit: int) -> int:
        """Add up at most `limit` rows of hours that end before a time; return their number.

        Raises:
            DependencyUnavailable: nothing changed; try again.
        """
        ...

    def sum_day(self) -> bool:
        """Sum a day whose rows were added up; return whether there may be another one.

        Raises:
            DependencyUnavailable: nothing changed; try again.
        """
        ...

    def keep_hours(self) -> bool:
        """Sum an hour that has no sums, or delete old ones; return whether there may be more.

        Raises:
            DependencyUnavailable: nothing changed; try again.
        """
        ...


class RollupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts rows added up since the start; `failures` are those in a row."""

    rows: int
    failures: int


class UsageRollup:
    """Adds up events older than `keep` seconds; looks for them each `every` seconds.

    A transaction takes at most a thousand rows, fewer after failures. Transactions are `rest`
    seconds apart, so that billing and accounts get the lock.
    """

    def __init__(
        self,
        store: UsageStore,
        *,
        keep: float,
        every: float = 30.0,
        rest: float = 0.05,
        clock: Callable[[], int] = time.time_ns,
        report: Callable[[RollupStatistics], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._keep = int(min(keep, _LONGEST) * _SECOND)
        self._every = every
        self._rest = rest
        self._clock = clock
        self._report = report
        self._backoff = StoppableBackoff(longest=every)
        self._rows = 0
        self._limit = BatchSize(_ROWS)

    async def run(self, stop: asyncio.Event) -> None:
        """Add up until `stop`."""
        while not stop.is_set():
            await pause(stop, await self.run_once())

    async def run_once(self) -> float:
        """Add up some rows; without any, sum a day or an hour. Return the seconds to wait then."""
        before = self._clock() - self._keep
        try:
            limit = self._limit.now
            rows = await asyncio.to_thread(self._store.add_up, before=before, limit=limit)
            goes_on = rows > 0
            for step in (self._store.sum_day, self._store.keep_hours):
                goes_on = goes_on or await asyncio.to_thread(step)
        except GatewayError as error:
            if not self._backoff.failures:
                _log.warning("the roll-up of usage is retried", extra={"reason": error.detail})
            self._limit.failed()
            return self._backoff.failed()
        except Exception:  # noqa: BLE001 - a failed roll-up must not end billing
            if not self._backoff.failures:
                _log.exception("the roll-up of usage failed and is retried")
            return self._backoff.failed()
        self._backoff.succeeded()
        self._limit.succeeded()
        self._rows += rows
        self._report(self.statistics())
        return self._rest if goes_on else self._every

    def statistics(self) -> RollupStatistics:
        """Return the counts so far."""
        return RollupStatistics(rows=self._rows, failures=self._backoff.failures)
