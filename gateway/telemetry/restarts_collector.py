"""Exports the supervisor's counts of restarts on the metrics page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from sluicegate.gateway.telemetry.restarts import read_restarts
from sluicegate.wire.metric_declaration import counter

_RESTARTS: Final = counter(
    "sluicegate_process_restarts_total",
    "Processes restarted by the supervisor. `reason`: `ended` (exited), `silent` (no heartbeat), "
    "`memory` (above its limit).",
    *("role", "reason"),
)


class RestartsCollector(Collector):
    """Reads the counts in `folder` at each scrape."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        counter = CounterMetricFamily(_RESTARTS.family, _RESTARTS.help, labels=_RESTARTS.labels)
        for restart in read_restarts(self._folder):
            counter.add_metric((restart.role, restart.reason), restart.count)
        yield counter
