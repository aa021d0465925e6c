"""The console's metrics: restarts that the supervisor counted are among them."""

from pathlib import Path

from gateway.console.console import ConsoleMetrics
from gateway.settings import Settings
from gateway.telemetry.restarts import RestartCounts


def test_restarts_are_among_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    RestartCounts(tmp_path).add("valkey-cache", "crash")

    found = ConsoleMetrics(Settings(data_dir=tmp_path)).read()

    labels = (("reason", "crash"), ("role", "valkey-cache"))
    assert found["sluicegate_process_restarts_total", labels] == 1.0
