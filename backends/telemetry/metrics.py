"""Renders a backend's statistics for Prometheus, at each scrape only."""

from collections.abc import Callable, Iterable, Iterator, Sequence

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

from backends.otlp_statistics import TracingStatistics
from backends.plans import ArmStatistics, bucket_bound
from backends.types import EncoderStatistics, Snapshot, padding_waste_ratio

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
# Of the buckets that durations of revisions are counted in: each doubling from 0.1 ms to 13 s.
_EDGES = range(0, 69, 4)
_Read = Callable[[EncoderStatistics], float]

_COUNTERS: tuple[tuple[str, str, _Read], ...] = (
    ("batches", "Batches run.", lambda e: e.queue.batches),
    ("rows", "Rows run through the encoder.", lambda e: e.queue.rows),
    ("tokens", "Real tokens run.", lambda e: e.queue.tokens),
    ("padded_tokens", "Tokens run, padding included.", lambda e: e.queue.padded_tokens),
    ("busy_seconds", "Seconds that worker threads were busy, added up.", lambda e: e.queue.busy),
    ("failed_rows", "Rows the model could not compute.", lambda e: e.queue.failed_rows),
    ("skipped_rows", "Rows whose callers had gone.", lambda e: e.queue.skipped_rows),
    ("expired_rows", "Rows refused at the end of the queue.", lambda e: e.queue.expired_rows),
    ("late_rows", "Rows run after their deadline.", lambda e: e.queue.late_rows),
    ("refused_rows", "Rows refused because the queue was full.", lambda e: e.queue.refused_rows),
    ("known_rows", "Rows answered from the row cache.", lambda e: e.rows.known_rows),
    ("joined_rows", "Rows joined to one in flight.", lambda e: e.rows.joined_rows),
)
_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    ("queued_rows", "Rows waiting.", lambda e: e.queue.queued_rows),
    ("queued_tokens", "Tokens waiting.", lambda e: e.queue.queued_tokens),
    ("runs_in_flight", "Batches that run now.", lambda e: e.queue.runs_in_flight),
    ("rows_per_second", "Rows a busy encoder runs.", lambda e: e.queue.rows_per_second),
    ("tokens_per_second", "Tokens a busy encoder runs.", lambda e: e.queue.tokens_per_second),
    ("queued_seconds", "Seconds that what waits will take.", lambda e: e.queue.queued_seconds),
    ("padding_waste_ratio", "Padding's share of work.", lambda e: padding_waste_ratio(e.queue)),
)


class BackendMetrics(Collector):
    """Reads a snapshot at each scrape: counting costs the hot path nothing."""

    def __init__(
        self, read: Callable[[], Snapshot], read_tracing: Callable[[], TracingStatistics]
    ) -> None:
        self._read = read
        self._read_tracing = read_tracing
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """Return the text of a scrape."""
        return generate_latest(self._registry)

    @override
    def collect(self) -> Iterator[Metric]:
        snapshot = self._read()
        yield _gauge("ready", "Whether the backend is ready.", float(snapshot.ready))
        yield _gauge("calls_in_flight", "Calls being answered.", snapshot.calls_in_flight)
        encoders, shadows = snapshot.encoders, snapshot.shadows
        labels = ["model", "task", "outcome"]
        yield _labelled("items", "Items by outcome.", labels, snapshot.items.items())
        yield from _arms(snapshot.arms)
        text = "Processes of algorithms that were lost: killed, ended, or not to be started."
        lost = snapshot.lost_hosts.items()
        yield _labelled("lost_algorithm_hosts", text, ["model", "reason"], lost)
        labels = ["model", "arm", "shadow", "outcome"]
        text = "Items mirrored to a revision, by how its answers compare."
        yield _labelled("shadow_items", text, labels, shadows.outcomes.items())
        text = "How far numbers of answers that say the same were apart at most."
        name, differences = "shadow_largest_difference", shadows.largest.items()
        yield _labelled(name, text, labels[:3], differences, GaugeMetricFamily)
        for kind, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, text, read in table:
                values = [((encoder.name,), read(encoder)) for encoder in encoders]
                yield _labelled(name, text, ["encoder"], values, kind)
        text = "Batches by the reason why they left as they were."
        releases = [((e.name, why), n) for e in encoders for why, n in e.queue.releases.items()]
        yield _labelled("releases", text, ["encoder", "reason"], releases)
        yield _gauge("device_busy_share", "Share of the device in use.", snapshot.device_busy_share)
        text = "Spans by what became of them: exported, failed or dropped."
        spans = msgspec.structs.asdict(self._read_tracing())
        yield _labelled("spans", text, ["outcome"], [((k,), n) for k, n in spans.items()])
        if encoders:
            cache = encoders[0].rows
            yield _gauge("row_cache_bytes", "Bytes of the row cache.", cache.size_bytes)
            yield _gauge("row_cache_rows", "Rows in the row cache.", cache.entries)


def _arms(arms: Iterable[ArmStatistics]) -> Iterator[Metric]:
    labels = ["model", "arm", "outcome"]
    outcomes = [((e.model, e.arm, name), n) for e in arms for name, n in e.outcomes.items()]
    yield _labelled("arm_items", "Items by the revision that answered.", labels, outcomes)
    first = [((e.model, e.arm, label), n) for e in arms for label, n in e.labels.items()]
    text = "First labels of answers, by the revision that gave them."
    yield _labelled("arm_labels", text, ["model", "arm", "label"], first)
    family = HistogramMetricFamily(
        "sluicegate_backend_arm_duration_seconds",
        "Time from a call's arrival to an item's answer, by the revision that answered.",
        labels=labels[:2],
    )
    for each in arms:
        buckets = [
            (f"{bucket_bound(edge):g}", sum(n for b, n in each.durations.items() if b <= edge))
            for edge in _EDGES
        ]
        buckets.append(("+Inf", sum(each.durations.values())))
        family.add_metric((each.model, each.arm), buckets, each.seconds)
    yield family


def _labelled(
    name: str,
    text: str,
    labels: list[str],
    values: Iterable[tuple[Sequence[str], float]],
    kind: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily,
) -> Metric:
    family = kind(f"sluicegate_backend_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sluicegate_backend_{name}", text, value=value)
