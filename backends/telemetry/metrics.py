"""Renders a backend's statistics for Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from sluicegate.backends.telemetry.nvml import THROTTLING, GpuReader, NoGpuReader
from sluicegate.backends.telemetry.process import ProcessFigures
from sluicegate.backends.types import Snapshot, padding_waste_ratio
from sluicegate.wire.metric_declaration import (
    Labels,
    MetricDeclaration,
    MetricKind,
    counter,
    gauge,
    histogram,
    read_samples,
)
from sluicegate.wire.plans import RevisionStatistics, bucket_bound
from sluicegate.wire.protocol import GpuState

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
# The exported duration buckets of revisions: powers of two from 0.1 ms to 13 s.
_EDGES = range(0, 69, 4)

_LOADED: Final = gauge(
    "sluicegate_backend_model_loaded",
    "Is 1 for each served revision that is loaded, and 0 for one that is loaded on demand.",
    *("model", "revision"),
)
_REVISION_ITEMS: Final = counter(
    "sluicegate_backend_arm_items_total",
    "Items by the revision that answered, and by outcome.",
    *("model", "arm", "outcome"),
)
_REVISION_DURATION: Final = histogram(
    "sluicegate_backend_arm_duration_seconds",
    "Time from a call's arrival to an item's result, by the revision that answered.",
    *("model", "arm"),
)
_REVISION_LABELS: Final = counter(
    "sluicegate_backend_arm_labels_total",
    "Results by their first label and the revision that answered.",
    *("model", "arm", "label"),
)
_WASTE: Final = gauge(
    "sluicegate_backend_padding_waste_ratio",
    "Fraction of the predicted time that padding takes, without the fixed cost of batches. "
    "Positions that a graph skips cost nothing.",
    "encoder",
)
_CACHE_BYTES: Final = gauge("sluicegate_backend_row_cache_bytes", "Size of the row cache.")
_CACHE_ROWS: Final = gauge("sluicegate_backend_row_cache_rows", "Rows in the row cache.")
_LAG: Final = histogram(
    "sluicegate_backend_event_loop_lag_seconds",
    "Delay of an event-loop timer, measured ten times a second.",
)
_HELD: Final = histogram(
    "sluicegate_backend_event_loop_held_seconds",
    "How long code held the event loop, at least: the delay without the time that the loop's "
    "thread waited for a core.",
)
_MEMORY: Final = gauge(
    "sluicegate_backend_resident_memory_bytes", "Resident memory of the process."
)
_CPU: Final = counter("sluicegate_backend_cpu_seconds_total", "CPU time of the process.")
_SPANS: Final = counter(
    "sluicegate_backend_spans_total",
    "Spans. `outcome`: `exported`, `failed`, `dropped` (the queue was full).",
    "outcome",
)
_GPU: Final = ("device", "uuid")
_GPUS: Final[Mapping[MetricDeclaration, Callable[[GpuState], float | None]]] = {
    gauge(
        "sluicegate_backend_gpu_memory_used_bytes",
        "GPU memory that all processes use, if NVML is available. Each backend reports all GPUs "
        "that it can see. `device` is the driver's number.",
        *_GPU,
    ): lambda gpu: gpu.used_bytes,
    gauge("sluicegate_backend_gpu_memory_total_bytes", "Memory of a GPU.", *_GPU): lambda gpu: (
        gpu.total_bytes
    ),
    gauge(
        "sluicegate_backend_gpu_utilization_ratio",
        "Fraction of the last sample period in which a GPU was busy. MIG devices do not report it.",
        *_GPU,
    ): lambda gpu: gpu.utilization,
    gauge("sluicegate_backend_gpu_power_watts", "Power draw of a GPU.", *_GPU): lambda gpu: (
        gpu.watts
    ),
}
_THROTTLED: Final = gauge(
    "sluicegate_backend_gpu_throttled",
    "Is 1 while clocks are reduced because of the `reason`: `power`, `heat` or `hardware`.",
    *_GPU,
    "reason",
)
_ECC_ERRORS: Final = counter(
    "sluicegate_backend_gpu_ecc_errors_total",
    "Memory errors of a GPU since its driver was loaded. `kind`: `corrected`, `uncorrected`.",
    *_GPU,
    "kind",
)


_entries: Final = attrgetter("entries")


class BackendMetrics(Collector):
    """Collects metrics from a snapshot of the backend's statistics, taken at each scrape."""

    def __init__(
        self,
        read: Callable[[], Snapshot],
        read_spans: Callable[[], Mapping[str, int]],
        *,
        process: ProcessFigures | None = None,
        gpus: GpuReader | None = None,
    ) -> None:
        self._read = read
        self._read_spans = read_spans
        self._process = process or ProcessFigures()
        self._gpus = gpus or NoGpuReader()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """Return all metrics in the OpenMetrics or Prometheus text format."""
        return generate_latest(self._registry)

    @override
    def collect(self) -> Iterator[Metric]:
        snapshot = self._read()
        families = _Families()
        for metric, labels, value, _ in read_samples(snapshot):
            families.add(metric, labels, value)
        for name, revision in snapshot.models.items():
            is_loaded = snapshot.states.get(name, "loaded") == "loaded"
            families.add(_LOADED, (name, revision), float(is_loaded))
        for each in snapshot.revisions:
            _add_revision(families, each)
        for encoder in snapshot.encoders:
            families.add(_WASTE, (encoder.name,), padding_waste_ratio(encoder.queue))
        # All loaded encoders share the row cache.
        if rows := max((each.rows for each in snapshot.encoders), key=_entries, default=None):
            families.add(_CACHE_BYTES, (), rows.size_bytes)
            families.add(_CACHE_ROWS, (), rows.entries)
        self._add_process(families)
        for gpu in self._gpus.read():
            _add_gpu(families, gpu)
        return iter(families)

    def _add_process(self, families: "_Families") -> None:
        families.add(_LAG, (), self._process.lags.seen())
        families.add(_HELD, (), self._process.holds.seen())
        families.add(_MEMORY, (), self._process.resident_bytes())
        families.add(_CPU, (), self._process.processor_seconds())
        for outcome, count in self._read_spans().items():
            families.add(_SPANS, (outcome,), count)


class _Families:
    """Groups values by metric."""

    def __init__(self) -> None:
        # `Any`: the families of counters, gauges and histograms have different methods
        self._families: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def add(self, metric: MetricDeclaration, labels: Labels, value: Any) -> None:
        """Add a value. The value of a histogram is a pair: the counts by bucket, and the sum."""
        if metric.kind is MetricKind.HISTOGRAM:
            counts, total = value
            bounds = (*map(str, metric.buckets), "+Inf")
            self.add_buckets(metric, labels, zip(bounds, accumulate(counts), strict=False), total)
        else:
            self._family(metric).add_metric(labels, value)

    def add_buckets(
        self,
        metric: MetricDeclaration,
        labels: Labels,
        buckets: Iterable[tuple[str, float]],
        total: float,
    ) -> None:
        """Add a histogram with these cumulative counts, unless there are none."""
        if found := list(buckets):
            self._family(metric).add_metric(labels, found, total)

    def _family(self, metric: MetricDeclaration) -> Any:
        if metric.name not in self._families:
            made = _MADE[metric.kind](metric.family, metric.help, labels=metric.labels)
            self._families[metric.name] = made
        return self._families[metric.name]


_MADE: Final[Mapping[MetricKind, type[Any]]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


def _add_revision(families: _Families, each: RevisionStatistics) -> None:
    labels = each.model, each.arm
    for outcome, count in each.outcomes.items():
        families.add(_REVISION_ITEMS, (*labels, outcome), count)
    for label, count in each.labels.items():
        families.add(_REVISION_LABELS, (*labels, label), count)
    buckets = [
        (f"{bucket_bound(edge):g}", sum(n for b, n in each.durations.items() if b <= edge))
        for edge in _EDGES
    ]
    buckets.append(("+Inf", sum(each.durations.values())))
    families.add_buckets(_REVISION_DURATION, labels, buckets, each.seconds)


def _add_gpu(families: _Families, gpu: GpuState) -> None:
    labels = str(gpu.device), gpu.uuid
    for metric, read in _GPUS.items():
        if (value := read(gpu)) is not None:
            families.add(metric, labels, value)
    if gpu.throttling is not None:
        for reason in THROTTLING:
            families.add(_THROTTLED, (*labels, reason), float(reason in gpu.throttling))
    if gpu.ecc_errors is not None:
        for kind, errors in zip(("corrected", "uncorrected"), gpu.ecc_errors, strict=True):
            families.add(_ECC_ERRORS, (*labels, kind), float(errors))
