"""Compares tenants' costs with their budgets. Runs in the billing process."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Protocol

import msgspec

from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.ledger.budgets import BudgetEvent
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.workers.backoff import FAILURES, StoppableBackoff
from sluicegate.wire.metric_declaration import counter

_EVERY: Final = 5.0
_log = logging.getLogger(__name__)


class BudgetStore(Protocol):
    """Stores budgets. Methods block."""

    def watch(self) -> Sequence[BudgetEvent]:
        """Record the thresholds that this month's costs have reached; return the new ones.

        Raises:
            DependencyUnavailable: the caller should repeat the call. Thresholds that are already
                recorded are not returned again.
        """
        ...


class BudgetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the thresholds reached since the start, and consecutive failures."""

    reached: Annotated[
        int,
        counter("sluicegate_budget_thresholds_total", "Budget thresholds that tenants reached."),
    ]
    failures: Annotated[int, FAILURES]


class BudgetMonitor:
    """Compares costs with budgets every `every` seconds."""

    def __init__(
        self,
        store: BudgetStore,
        *,
        every: float = _EVERY,
        report: Callable[[BudgetStatistics], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._every = every
        self._report = report
        self._backoff = StoppableBackoff(longest=30.0)
        self._reached = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Compare costs with budgets until `stop` is set."""
        while not stop.is_set():
            await pause(stop, await self.run_once())

    async def run_once(self) -> float:
        """Compare costs with budgets; return the seconds to wait before the next call."""
        try:
            found = await asyncio.to_thread(self._store.watch)
        except GatewayError as error:
            if not self._backoff.failures:
                _log.warning(
                    "costs could not be compared with budgets; trying again",
                    extra={"reason": error.detail},
                )
            return self._failed()
        except Exception:  # noqa: BLE001 - a failed comparison must not end billing
            if not self._backoff.failures:
                _log.exception("costs could not be compared with budgets; trying again")
            return self._failed()
        self._backoff.succeeded()
        for one in found:
            _log.warning(
                "a tenant reached a threshold of its budget",
                extra={"tenant": one.tenant, "month": one.month, "threshold": one.threshold},
            )
        self._reached += len(found)
        self._report_counts()
        return self._every

    def _failed(self) -> float:
        wait = self._backoff.failed()
        self._report_counts()
        return wait

    def _report_counts(self) -> None:
        counts = BudgetStatistics(reached=self._reached, failures=self._backoff.failures)
        self._report(counts)
