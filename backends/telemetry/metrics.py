"""Renders a backend's statistics for Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from backends.telemetry.catalogue import SECONDS, backend_metrics
from backends.telemetry.nvml import THROTTLING, GpuReader, NoGpuReader
from backends.telemetry.process import ProcessFigures
from backends.types import EncoderStatistics, Snapshot, padding_waste_ratio
from wire.metric_declaration import MetricDeclaration, MetricKind
from wire.otlp.statistics import TracingStatistics
from wire.plans import RevisionStatistics, bucket_bound
from wire.protocol import GpuState

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
# The exported duration buckets of revisions: powers of two from 0.1 ms to 13 s.
_EDGES = range(0, 69, 4)
_Counts = tuple[Sequence[int], float]
_Labelled = Iterable[tuple[Sequence[str], float]]

_ENCODERS: Final[Mapping[str, Callable[[EncoderStatistics], float]]] = {
    "batches_total": lambda e: e.queue.batches,
    "rows_total": lambda e: e.queue.rows,
    "tokens_total": lambda e: e.queue.tokens,
    "padded_tokens_total": lambda e: e.queue.padded_tokens,
    "busy_seconds_total": lambda e: e.queue.busy,
    "failed_rows_total": lambda e: e.queue.failed_rows,
    "skipped_rows_total": lambda e: e.queue.skipped_rows,
    "expired_rows_total": lambda e: e.queue.expired_rows,
    "late_rows_total": lambda e: e.queue.late_rows,
    "refused_rows_total": lambda e: e.queue.refused_rows,
    "known_rows_total": lambda e: e.rows.cached_rows,
    "joined_rows_total": lambda e: e.rows.coalesced_rows,
    "queued_rows": lambda e: e.queue.queued_rows,
    "queued_tokens": lambda e: e.queue.queued_tokens,
    "runs_in_flight": lambda e: e.queue.runs_in_flight,
    "rows_per_second": lambda e: e.queue.rows_per_second,
    "tokens_per_second": lambda e: e.queue.tokens_per_second,
    "queued_seconds": lambda e: e.queue.queued_seconds,
    "padding_waste_ratio": lambda e: padding_waste_ratio(e.queue),
}
_GPUS: Final[Mapping[str, Callable[[GpuState], float | None]]] = {
    "gpu_memory_used_bytes": lambda gpu: gpu.used_bytes,
    "gpu_memory_total_bytes": lambda gpu: gpu.total_bytes,
    "gpu_utilization_ratio": lambda gpu: gpu.utilization,
    "gpu_power_watts": lambda gpu: gpu.watts,
}


class BackendMetrics(Collector):
    """Collects metrics from a snapshot of the backend's statistics, taken at each scrape."""

    def __init__(
        self,
        read: Callable[[], Snapshot],
        read_tracing: Callable[[], TracingStatistics],
        *,
        process: ProcessFigures | None = None,
        gpus: GpuReader | None = None,
    ) -> None:
        self._read = read
        self._read_tracing = read_tracing
        self._process = process or ProcessFigures()
        self._gpus = gpus or NoGpuReader()
        self._declared = backend_metrics()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """Return all metrics in the OpenMetrics or Prometheus text format."""
        return generate_latest(self._registry)

    @override
    def collect(self) -> Iterator[Metric]:
        snapshot = self._read()
        yield self._gauge("ready", float(snapshot.ready))
        yield self._labelled("model_loaded", [(one, 1.0) for one in snapshot.models.items()])
        yield self._gauge("calls_in_flight", snapshot.calls_in_flight)
        yield self._labelled("items_total", snapshot.items.items())
        yield self._labelled("lost_algorithm_hosts_total", snapshot.lost_hosts.items())
        yield from self._revisions(snapshot.revisions)
        yield self._labelled("shadow_items_total", snapshot.shadows.outcomes.items())
        yield self._labelled("shadow_largest_difference", snapshot.shadows.largest.items())
        yield from self._encoders(snapshot.encoders)
        yield self._gauge("device_busy_share", snapshot.device_busy_share)
        yield from self._of_process()
        yield from self._of_gpus()
        if snapshot.encoders:
            cache = snapshot.encoders[0].rows
            yield self._gauge("row_cache_bytes", cache.size_bytes)
            yield self._gauge("row_cache_rows", cache.entries)

    def _revisions(self, revisions: Sequence[RevisionStatistics]) -> Iterator[Metric]:
        outcomes = [
            ((e.model, e.arm, name), n) for e in revisions for name, n in e.outcomes.items()
        ]
        yield self._labelled("arm_items_total", outcomes)
        first = [((e.model, e.arm, label), n) for e in revisions for label, n in e.labels.items()]
        yield self._labelled("arm_labels_total", first)
        family = self._histogram("arm_duration_seconds")
        for each in revisions:
            buckets = [
                (f"{bucket_bound(edge):g}", sum(n for b, n in each.durations.items() if b <= edge))
                for edge in _EDGES
            ]
            buckets.append(("+Inf", sum(each.durations.values())))
            family.add_metric((each.model, each.arm), buckets, each.seconds)
        yield family

    def _encoders(self, encoders: Sequence[EncoderStatistics]) -> Iterator[Metric]:
        for name, read in _ENCODERS.items():
            yield self._labelled(name, [((encoder.name,), read(encoder)) for encoder in encoders])
        releases = [((e.name, why), n) for e in encoders for why, n in e.queue.releases.items()]
        yield self._labelled("releases_total", releases)
        phases = self._histogram("phase_duration_seconds")
        for each in encoders:
            found = {"tokenize": each.tokenization, **each.queue.durations}
            for phase, durations in found.items():
                _add_durations(phases, (each.name, phase), durations)
        yield phases

    def _of_process(self) -> Iterator[Metric]:
        for name, delays in (("lag", self._process.lags), ("held", self._process.holds)):
            histogram = self._histogram(f"event_loop_{name}_seconds")
            _add_durations(histogram, (), delays.seen())
            yield histogram
        yield self._gauge("resident_memory_bytes", self._process.resident_bytes())
        yield self._labelled("cpu_seconds_total", [((), self._process.processor_seconds())])
        spans = msgspec.structs.asdict(self._read_tracing())
        yield self._labelled("spans_total", [((outcome,), n) for outcome, n in spans.items()])

    def _of_gpus(self) -> Iterator[Metric]:
        found = [((str(gpu.device), gpu.uuid), gpu) for gpu in self._gpus.read()]
        if not found:
            return
        for name, read in _GPUS.items():
            values = [(labels, read(gpu)) for labels, gpu in found]
            told = [(labels, value) for labels, value in values if value is not None]
            yield self._labelled(name, told)
        throttled = [
            ((*labels, reason), float(reason in gpu.throttling))
            for labels, gpu in found
            if gpu.throttling is not None
            for reason in THROTTLING
        ]
        yield self._labelled("gpu_throttled", throttled)
        errors = [
            ((*labels, kind), float(count))
            for labels, gpu in found
            if gpu.ecc_errors is not None
            for kind, count in zip(("corrected", "uncorrected"), gpu.ecc_errors, strict=True)
        ]
        yield self._labelled("gpu_ecc_errors_total", errors)

    def _labelled(self, name: str, values: _Labelled) -> Metric:
        declared = self._declaration(name)
        family: CounterMetricFamily | GaugeMetricFamily
        if declared.kind is MetricKind.COUNTER:
            family = CounterMetricFamily(declared.family, declared.help, labels=declared.labels)
        else:
            family = GaugeMetricFamily(declared.name, declared.help, labels=declared.labels)
        for labels, value in values:
            family.add_metric(labels, value)
        return family

    def _gauge(self, name: str, value: float) -> Metric:
        return self._labelled(name, [((), value)])

    def _histogram(self, name: str) -> HistogramMetricFamily:
        declared = self._declaration(name)
        return HistogramMetricFamily(declared.name, declared.help, labels=declared.labels)

    def _declaration(self, name: str) -> MetricDeclaration:
        return self._declared[f"sluicegate_backend_{name}"]


def _add_durations(
    family: HistogramMetricFamily, labels: Sequence[str], durations: _Counts
) -> None:
    counts, total = durations
    if not counts:
        return
    buckets, seen = [], 0
    for bound, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    family.add_metric(labels, buckets, total)
