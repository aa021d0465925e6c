"""Exports the supervisor's counts of restarts on the metrics page."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from gateway.telemetry.restarts import read_restarts


class RestartsCollector(Collector):
    """Reads the counts in `folder` at each scrape."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        counter = CounterMetricFamily(
            "sluicegate_process_restarts",
            "Processes that the supervisor started again",
            labels=("role", "reason"),
        )
        for restart in read_restarts(self._folder):
            counter.add_metric((restart.role, restart.reason), restart.count)
        yield counter
