"""Sums old usage events in the ledger by hour. Runs in the billing process."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Annotated, Final, Protocol

import msgspec

from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.workers.backoff import FAILURES, BatchSize, StoppableBackoff
from sluicegate.wire.metric_declaration import counter

_ROWS: Final = 1000
_SECOND: Final = 1_000_000_000
_LONGEST: Final = 1e9
"""The largest `keep` in seconds. With it, no event is ever old enough to be summed."""
_log = logging.getLogger(__name__)


class UsageStore(Protocol):
    """Stores usage events. Methods block."""

    def add_up(self, *, before: int, limit: int) -> int:
        """Replace at most `limit` rows of one hour by sums, and return the number of these rows.

        The hour ended at or before `before`, in nanoseconds since 1970.

        Raises:
            DependencyUnavailable: nothing has changed. The caller should try again.
        """
        ...

    def catch_up(self, *, limit: int) -> bool:
        """Add at most `limit` rows to the totals; return whether there may be more to do.

        Raises:
            DependencyUnavailable: nothing has changed. The caller should try again.
        """
        ...


class RollupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the rows summed since the start, and consecutive failures."""

    rows: Annotated[
        int,
        counter("sluicegate_usage_rollup_rows_total", "Usage events that the rollup has summed."),
    ]
    failures: Annotated[int, FAILURES]


class UsageRollup:
    """Sums usage events older than `keep` seconds. Looks for such events every `every` seconds.

    A transaction sums at most a thousand rows, and fewer after failures. The roll-up waits `rest`
    seconds after each transaction, so that other processes can write to the ledger.
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
        """Sum events until `stop` is set."""
        while not stop.is_set():
            await pause(stop, await self.run_once())

    async def run_once(self) -> float:
        """Sum some rows, and return the seconds to wait before the next call.

        If there are no rows to sum, bring the totals up to date.
        """
        before = self._clock() - self._keep
        try:
            limit = self._limit.now
            rows = await asyncio.to_thread(self._store.add_up, before=before, limit=limit)
            goes_on = rows > 0 or await asyncio.to_thread(self._store.catch_up, limit=limit)
        except GatewayError as error:
            if not self._backoff.failures:
                _log.warning(
                    "the rollup of usage events failed and is retried",
                    extra={"reason": error.detail},
                )
            self._limit.failed()
            return self._backoff.failed()
        except Exception:  # noqa: BLE001 - a failed rollup must not end billing
            if not self._backoff.failures:
                _log.exception("the rollup of usage events failed and is retried")
            return self._backoff.failed()
        self._backoff.succeeded()
        self._limit.succeeded()
        self._rows += rows
        self._report(self.statistics())
        return self._rest if goes_on else self._every

    def statistics(self) -> RollupStatistics:
        """Return the counts so far."""
        return RollupStatistics(rows=self._rows, failures=self._backoff.failures)
