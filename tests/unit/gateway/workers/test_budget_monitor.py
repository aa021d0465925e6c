"""Budgets are watched again after what ends neither that nor billing."""

import logging

import pytest

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.budgets import BudgetEvent
from sluicegate.gateway.workers.budget_monitor import BudgetMonitor, BudgetStatistics

pytestmark = pytest.mark.anyio
_FOUND = [BudgetEvent(tenant="acme", month="2026-09", threshold=80)]


class Store:
    """Returns one event, or raises `trouble`."""

    trouble: Exception | None = None

    def watch(self) -> list[BudgetEvent]:
        """See `BudgetStore`."""
        if self.trouble is not None:
            raise self.trouble
        return _FOUND


@pytest.mark.parametrize("trouble", [DependencyUnavailable("away"), ValueError("a fault")])
async def test_it_goes_on_after_a_failure(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[BudgetStatistics] = []
    store = Store()
    monitor = BudgetMonitor(store, every=5.0, report=reports.append)
    store.trouble = trouble
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await monitor.run_once()
        store.trouble = None
        wait = await monitor.run_once()

    assert wait == 5.0
    counts = [(report.reached, report.failures) for report in reports]
    assert counts == [(0, 1), (0, 2), (1, 0)]
    assert len(caplog.records) == 2  # the first failure, and the threshold
    assert "threshold" in caplog.records[-1].message
