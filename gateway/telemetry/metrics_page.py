"""Adds up the metrics of all processes of a machine from their files."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from typing_extensions import override

from sluicegate.gateway.telemetry.metric_files import files_held
from sluicegate.gateway.telemetry.restarts_collector import RestartsCollector


def read_metrics(folder: Path, *, data_dir: Path) -> list[Metric]:
    """Return the metrics in `folder` and the supervisor's counts in `data_dir`, sorted by name."""
    folder.mkdir(parents=True, exist_ok=True)
    collector: Any = MultiProcessCollector  # Any: its methods have no types
    with files_held(folder, exclusive=False):
        paths = [str(path) for path in folder.glob("[!.]*.db")]
        read = collector._read_metrics(paths)  # noqa: SLF001 - values are filtered in between
    for metric in read.values():
        # NaN marks a series that a process no longer shows. Another process may still show the
        # series.
        metric.samples = [sample for sample in metric.samples if not math.isnan(sample.value)]
    added_up = collector._accumulate_metrics(read, accumulate=True)  # noqa: SLF001 - as above
    found = [*added_up, *RestartsCollector(data_dir).collect()]
    return sorted((one for one in found if one.samples), key=lambda metric: metric.name)


class ReadMetrics(Collector):
    """Passes metrics that were read from files to `prometheus_client`, which encodes them."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics
