"""The console's metrics: restarts that the supervisor counted, and gauges of incidents."""

from pathlib import Path

import pytest
from prometheus_client.mmap_dict import mmap_key

from sluicegate.gateway.console.console import ConsoleMetrics
from sluicegate.gateway.console.incidents import GAUGES
from sluicegate.gateway.console.traffic import METRICS
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.telemetry.metric_files import ReservedDict
from sluicegate.gateway.telemetry.restarts import RestartCounts
from tools.reference.metrics_page import declared_metrics


def test_restarts_are_among_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    RestartCounts(tmp_path).add("valkey-cache", "crash")

    found = ConsoleMetrics(Settings(data_dir=tmp_path)).read()

    labels = (("reason", "crash"), ("role", "valkey-cache"))
    assert found["sluicegate_process_restarts_total", labels] == 1.0


@pytest.mark.parametrize("name", GAUGES)
def test_a_gauge_that_may_tell_of_an_incident_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "metrics").mkdir()
    file = ReservedDict(tmp_path / "metrics" / "gauge_max_1.db")
    file.write_value(mmap_key(name, name, ["dependency"], ["ledger"], ""), 7.0)

    found = ConsoleMetrics(Settings(data_dir=tmp_path)).read()

    assert found[name, (("dependency", "ledger"),)] == 7.0
    file.close()


def test_the_console_reads_metrics_that_prometheus_scrapes() -> None:
    assert {*METRICS, *GAUGES} <= {metric.family for metric in declared_metrics().values()}
