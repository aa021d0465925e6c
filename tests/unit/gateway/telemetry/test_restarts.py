"""What the supervisor counted reaches the metrics page."""

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from sluicegate.gateway.telemetry.restarts import FILE, RestartCounts, read_restarts
from sluicegate.gateway.telemetry.restarts_collector import RestartsCollector


def page(folder: Path) -> str:
    registry = CollectorRegistry()
    registry.register(RestartsCollector(folder))
    return generate_latest(registry).decode()


def test_restarts_are_shown_by_role_and_reason(tmp_path: Path) -> None:
    counts = RestartCounts(tmp_path)

    counts.add("gateway", "silent")
    counts.add("gateway", "silent")
    counts.add("billing", "ended")

    shown = page(tmp_path)
    assert 'sluicegate_process_restarts_total{reason="silent",role="gateway"} 2.0' in shown
    assert 'sluicegate_process_restarts_total{reason="ended",role="billing"} 1.0' in shown


def test_counts_of_a_former_supervisor_are_forgotten(tmp_path: Path) -> None:
    RestartCounts(tmp_path).add("gateway", "memory")

    RestartCounts(tmp_path).forget_former()

    assert read_restarts(tmp_path) == []


def test_a_file_that_cannot_be_read_is_no_count(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[")

    assert read_restarts(tmp_path) == []


def test_a_folder_that_cannot_be_written_costs_the_file_only(tmp_path: Path) -> None:
    counts = RestartCounts(tmp_path / "gone")

    counts.add("gateway", "ended")

    assert read_restarts(tmp_path / "gone") == []
