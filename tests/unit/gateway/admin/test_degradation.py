"""What is degraded on a machine is named by its metrics, causes first."""

from pathlib import Path

import pytest
from prometheus_client.mmap_dict import mmap_key

from sluicegate.gateway.admin.degradation import DegradationReader, degraded_by
from sluicegate.gateway.telemetry.metric_files import ReservedDict
from sluicegate.gateway.telemetry.metric_reading import Series

pytestmark = pytest.mark.anyio


def test_a_full_disk_comes_before_what_follows_from_it() -> None:
    values: dict[Series, float] = {
        ("sluicegate_breaker_open", (("dependency", "cache_redis"),)): 0.0,
        ("sluicegate_breaker_open", (("dependency", "state_redis"),)): 1.0,
        ("sluicegate_data_disk_free_bytes", ()): 0.0,
        ("sluicegate_dependency_up", (("dependency", "ledger"),)): 1.0,
        ("sluicegate_dependency_up", (("dependency", "state_redis"),)): 0.0,
        ("sluicegate_event_log_writable", ()): 0.0,
    }

    names = [line.partition(":")[0] for line in degraded_by(values)]
    assert names == ["data_disk", "event_log", "state_redis", "state_redis"]


def test_what_is_well_is_not_named() -> None:
    values: dict[Series, float] = {
        ("sluicegate_breaker_open", (("dependency", "state_redis"),)): 0.0,
        ("sluicegate_data_disk_free_bytes", ()): 2.0 * (1 << 30),
        ("sluicegate_dependency_up", (("dependency", "state_redis"),)): 1.0,
        ("sluicegate_event_log_writable", ()): 1.0,
    }

    assert list(degraded_by(values)) == []


async def test_metrics_are_read_from_the_files_of_all_processes(tmp_path: Path) -> None:
    name = "sluicegate_data_disk_free_bytes"
    for process, free in enumerate((5e9, 7.0), 1):
        gauges = ReservedDict(tmp_path / f"gauge_min_{process}.db")
        gauges.write_value(mmap_key(name, name, [], [], ""), free)
        gauges.close()

    assert await DegradationReader(tmp_path).read() == ["data_disk: 7 bytes are free"]
    assert await DegradationReader(tmp_path / "none").read() == []
