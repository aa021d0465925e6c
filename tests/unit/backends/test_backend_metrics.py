"""The metrics page of a backend has what its list declares, and nothing else."""

import ctypes.util

from prometheus_client.core import Metric

from backends.metric_declaration import MetricKind
from backends.otlp_statistics import TracingStatistics
from backends.plans import ArmStatistics
from backends.telemetry.catalogue import SECONDS, backend_metrics
from backends.telemetry.metrics import BackendMetrics
from backends.telemetry.nvml import GpuReader, open_gpus
from backends.telemetry.process import ProcessFigures
from backends.types import (
    EncoderStatistics,
    QueueStatistics,
    RowStatistics,
    ShadowStatistics,
    Snapshot,
)
from tests.support.gpu_library import FakeGpuLibrary

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
    arms=[
        ArmStatistics(
            model="sentiment",
            arm="1",
            outcomes={"done": 1},
            durations={9: 1},
            labels={"positive": 1},
        )
    ],
    lost_hosts={("mood", "ended"): 1},
    models={"sentiment": "ab12"},
)


def metrics(gpus: GpuReader) -> BackendMetrics:
    process = ProcessFigures()
    process.lags.add(0.001)
    return BackendMetrics(lambda: _SNAPSHOT, TracingStatistics, process=process, gpus=gpus)


def shown(metric: Metric) -> tuple[str, set[str]]:
    """Return the name that Prometheus shows, and the labels."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return name, {label for sample in metric.samples for label in sample.labels} - {"le"}


def test_a_scrape_has_every_declared_metric_and_no_other() -> None:
    found = list(metrics(GpuReader(FakeGpuLibrary())).collect())

    assert all(metric.samples for metric in found)
    assert dict(map(shown, found)) == {
        name: set(declared.labels) for name, declared in backend_metrics().items()
    }
    kinds = {shown(metric)[0]: MetricKind(metric.type) for metric in found}
    assert kinds == {name: declared.kind for name, declared in backend_metrics().items()}


def test_durations_are_cumulative_buckets_on_the_page() -> None:
    text = metrics(GpuReader(FakeGpuLibrary())).render().decode()

    name, labels = "sluicegate_backend_phase_duration_seconds", 'encoder="minilm"'
    for phase in ("tokenize", "queue", "run"):
        assert f'{name}_bucket{{{labels},le="1e-05",phase="{phase}"}} 1.0' in text
        assert f'{name}_bucket{{{labels},le="+Inf",phase="{phase}"}} 1.0' in text


def test_gpus_are_read_and_one_that_does_not_tell_its_use_has_none() -> None:
    first, second = GpuReader(FakeGpuLibrary()).read()

    assert (first.device, first.used_bytes, first.utilization) == (0, 100_000_000, 0.37)
    assert (second.total_bytes, second.utilization) == (80_000_000_000, None)


def test_without_a_library_or_a_driver_there_are_no_gpus() -> None:
    assert open_gpus("libno-such-library.so.1").read() == []
    assert open_gpus(ctypes.util.find_library("c") or "").read() == []  # has no such functions
    assert GpuReader(FakeGpuLibrary(fails=True)).read() == []
