"""Sampled requests are named at the buckets of latencies that they are of."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest

from sluicegate.gateway.telemetry.exemplars import ExemplarFile, read_exemplars, with_exemplars
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.gateway.telemetry.metrics_page import ReadMetrics

_ROUTE = "/v1/classify"
_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = f"00-{_TRACE}-b7ad6b7169203331-01"


def worker(folder: Path) -> tuple[CollectorRegistry, GatewayMetrics]:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    metrics.exemplars.folder = folder
    return registry, metrics


def test_the_trace_of_a_request_stands_at_its_bucket(tmp_path: Path) -> None:
    registry, metrics = worker(tmp_path)
    for duration in (0.00002, 0.3):
        metrics.request(_ROUTE, "sentiment", duration)
    metrics.exemplar(_ROUTE, "sentiment", 0.3, _PARENT)
    metrics.flush()
    metrics.exemplars.publish()

    shown = CollectorRegistry()
    shown.register(ReadMetrics(with_exemplars(registry.collect(), tmp_path)))
    page: bytes = generate_latest(shown)  # type: ignore[no-untyped-call]
    lines = page.decode().splitlines()

    (named,) = [line for line in lines if "trace_id" in line]
    assert 'le="0.5"' in named
    assert f'# {{trace_id="{_TRACE}"}} 0.3 ' in named
    assert lines[-1] == "# EOF"


def test_the_newest_of_all_processes_is_shown_and_a_broken_file_is_none(tmp_path: Path) -> None:
    _, metrics = worker(tmp_path)
    metrics.exemplar(_ROUTE, "sentiment", 0.3, _PARENT.replace("0af7", "ffff"))
    metrics.exemplars.publish()
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / "exemplars_1.json")
    metrics.exemplar(_ROUTE, "sentiment", 0.3, _PARENT)
    metrics.exemplars.publish()
    (tmp_path / "exemplars_2.json").write_bytes(b"[[")

    (found,) = read_exemplars(tmp_path).values()

    assert found.trace == _TRACE


def test_nothing_is_written_where_nothing_was_sampled(tmp_path: Path) -> None:
    _, metrics = worker(tmp_path)

    metrics.exemplars.publish()
    ExemplarFile(tmp_path / "none").publish()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("duration", [0.0, 1e9])
def test_exemplars_of_extreme_durations_have_buckets(tmp_path: Path, duration: float) -> None:
    _, metrics = worker(tmp_path)

    metrics.exemplar(_ROUTE, "sentiment", duration, _PARENT)
    metrics.exemplars.publish()

    assert len(read_exemplars(tmp_path)) == 1


def test_buckets_with_the_labels_of_a_former_version_have_none(tmp_path: Path) -> None:
    former = Metric("sluicegate_request_duration_seconds", "Durations.", "histogram")
    former.add_sample(f"{former.name}_bucket", {"task": "classify", "le": "1.0"}, 1.0)

    (shown,) = with_exemplars([former], tmp_path)

    assert shown.samples[0].exemplar is None
