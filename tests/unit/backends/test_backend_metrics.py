"""The metrics page of a backend has what its list declares, and nothing else."""

import ctypes
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from sluicegate.backends.telemetry.metrics import BackendMetrics
from sluicegate.backends.telemetry.nvml import GpuReader, NoGpuReader, open_gpus
from sluicegate.backends.telemetry.process import ProcessFigures
from sluicegate.backends.types import (
    EncoderStatistics,
    QueueStatistics,
    ResidencyStatistics,
    RowStatistics,
    ShadowStatistics,
    Snapshot,
)
from sluicegate.wire.durations import SECONDS
from sluicegate.wire.metric_declaration import MetricKind
from sluicegate.wire.plans import RevisionStatistics
from tests.support.gpu_library import LOST, FakeDriver, FakeGpu
from tools.reference.metrics_page import BACKEND, declared_metrics

_DURATIONS = ((1, *[0] * len(SECONDS)), 0.000004)
_SNAPSHOT = Snapshot(
    ready=True,
    calls_in_flight=0,
    items={("sentiment", "classify", "done"): 1},
    encoders=[
        EncoderStatistics(
            name="minilm",
            queue=QueueStatistics(
                releases={"full": 1}, durations={"queue": _DURATIONS, "run": _DURATIONS}
            ),
            rows=RowStatistics(),
            tokenization=_DURATIONS,
        )
    ],
    shadows=ShadowStatistics(
        outcomes={("sentiment", "1", "next", "same"): 1}, largest={("sentiment", "1", "next"): 0.1}
    ),
    revisions=[
        RevisionStatistics(
            model="sentiment",
            arm="1",
            outcomes={"done": 1},
            durations={9: 1},
            labels={"positive": 1},
        )
    ],
    lost_hosts={("mood", "ended"): 1},
    models={"sentiment": "ab12"},
    residency=ResidencyStatistics(
        outcomes={"loaded": 1}, evictions={"minilm": 1}, durations=_DURATIONS
    ),
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver with a whole card and a part of another."""
    driver = FakeDriver(tmp_path)
    driver.show([FakeGpu("GPU-1"), FakeGpu("GPU-2", mig={"MIG-1": 10_000_000_000})])
    monkeypatch.setenv("FAKE_GPUS", driver.environment["FAKE_GPUS"])
    return driver


def metrics(gpus: GpuReader) -> BackendMetrics:
    process = ProcessFigures()
    process.lags.add(0.001)
    return BackendMetrics(lambda: _SNAPSHOT, lambda: {"exported": 1}, process=process, gpus=gpus)


def shown(metric: Metric) -> tuple[str, set[str]]:
    """Return the name that Prometheus shows, and the labels."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return name, {label for sample in metric.samples for label in sample.labels} - {"le"}


def test_a_scrape_has_every_declared_metric_and_no_other(driver: FakeDriver) -> None:
    reader = GpuReader(ctypes.CDLL(str(driver.library)))
    found = list(metrics(reader).collect())
    declared = declared_metrics(BACKEND)

    assert all(metric.samples for metric in found)
    assert dict(map(shown, found)) == {
        name: set(metric.labels) for name, metric in declared.items()
    }
    kinds = {shown(metric)[0]: MetricKind(metric.type) for metric in found}
    assert kinds == {name: metric.kind for name, metric in declared.items()}


def test_durations_are_cumulative_buckets_on_the_page() -> None:
    text = metrics(NoGpuReader()).render().decode()

    name, labels = "sluicegate_backend_phase_duration_seconds", 'encoder="minilm"'
    for phase in ("tokenize", "queue", "run"):
        assert f'{name}_bucket{{{labels},le="1e-05",phase="{phase}"}} 1.0' in text
        assert f'{name}_bucket{{{labels},le="+Inf",phase="{phase}"}} 1.0' in text


def test_a_gpu_is_read_and_a_part_of_one_does_not_tell_all(driver: FakeDriver) -> None:
    first, second = open_gpus(ctypes.CDLL(str(driver.library))).read()

    assert (first.device, first.uuid, first.name) == (0, "GPU-1", "NVIDIA H100 80GB HBM3")
    assert (first.used_bytes, first.total_bytes) == (20_000_000_000, 80_000_000_000)
    assert (first.utilization, first.watts, first.ecc_errors) == (0.37, 312.5, (7, 1))
    assert first.throttling == ["power", "heat"]
    assert (second.device, second.uuid, second.total_bytes) == (1, "MIG-1", 10_000_000_000)
    assert (second.utilization, second.watts) == (None, None)
    assert (second.throttling, second.ecc_errors) == (None, None)


def test_a_lost_gpu_is_on_no_page(driver: FakeDriver) -> None:
    reader = open_gpus(ctypes.CDLL(str(driver.library)))
    driver.show([FakeGpu("GPU-1", code=LOST)])

    assert reader.read() == []
    assert reader.read_device("GPU-1") == LOST


def test_only_visible_gpus_are_read(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")

    assert open_gpus(ctypes.CDLL(str(driver.library))).uuids == ["MIG-1"]


def test_without_a_library_or_a_driver_there_are_no_gpus(driver: FakeDriver) -> None:
    driver.show(init=9)

    assert open_gpus(ctypes.CDLL(None)).read() == []  # has no such functions
    assert open_gpus(ctypes.CDLL(str(driver.library))).read() == []
