"""Rows that run after their deadline are told of."""

from sluicegate.backends.batching.meter import Meter
from sluicegate.backends.executors.cost import CostModel
from tests.support.clock import Clock


def test_rows_begun_after_their_deadline_are_counted() -> None:
    meter = Meter(worker_threads=1, cost=CostModel(), clock=Clock())

    meter.count([10, 10, 10], took=0.1, late=2)
    meter.count([10], took=0.1)

    assert meter.statistics().late_rows == 2
