"""Pushes metrics over OTLP as the `OTEL_*` variables say.

The pushed metrics are those that a scrape would return, as cumulative sums, gauges and histograms.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family, Sample

from wire.metric_declaration import unit_of
from wire.otlp.spans import CLOSE_WITHIN, open_exporter
from wire.otlp.variables import number

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_SCOPE: Final = InstrumentationScope("sluicegate")
_UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}
_Labels = tuple[tuple[str, str], ...]
_log = logging.getLogger(__name__)


class MetricPusher:
    """Exports metrics in a thread, so that no request waits for a collector.

    If an export takes longer than the interval, newer metrics replace the metrics that wait for
    their export.
    """

    def __init__(
        self,
        exporter: MetricExporter,
        *,
        interval: float,
        resource: Resource,
        counted_since: int | None = None,
    ) -> None:
        self._exporter = exporter
        self._interval = interval
        self._resource = resource
        self.close_within = CLOSE_WITHIN
        self._started = time.time_ns() if counted_since is None else counted_since
        self._newest: MetricsData | None = None
        self._is_closing = False
        self._wakes = threading.Event()
        self._thread = threading.Thread(target=self._export_all, name="metrics", daemon=True)

    async def run(
        self, read: Callable[[], Awaitable[Iterable[Family]]], stop: asyncio.Event
    ) -> None:
        """Push the metrics that `read` returns at every interval, and once more after `stop`."""
        self._thread.start()
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._interval)
            try:
                self.push(await read())
            except Exception:  # noqa: BLE001 - a failed reading must not prevent later ones
                _log.exception("cannot read metrics")
        self._is_closing = True
        self._wakes.set()
        await asyncio.to_thread(self._thread.join, self.close_within)

    def push(self, families: Iterable[Family]) -> None:
        """Let the thread export `families`."""
        self._newest = metrics_data(
            families, self._resource, started=self._started, now=time.time_ns()
        )
        self._wakes.set()

    def _export_all(self) -> None:
        while self._newest is not None or not self._is_closing:
            self._wakes.wait()
            self._wakes.clear()
            made, self._newest = self._newest, None
            if made is None:
                continue
            try:
                self._exporter.export(made)
            except Exception:  # noqa: BLE001 - after any error, the next export may succeed
                _log.exception("cannot export metrics")
        self._exporter.shutdown()


def open_pusher(
    environ: MutableMapping[str, str],
    attributes: Mapping[str, str],
    *,
    counted_since: int | None = None,
) -> MetricPusher:
    """Return the pusher that the process's environment (`environ`) configures.

    `counted_since` is the time in nanoseconds at which the counters began to count, by default the
    present time. With a wrong time, a collector would see a reset of the counters and count twice.

    Raises:
        TracingProblem: the exporter is not installed, or a variable has an invalid value.
    """
    interval = number(environ, "OTEL_METRIC_EXPORT_INTERVAL", default=60_000) / 1000
    given = OTELResourceDetector().detect().attributes
    resource = Resource.create({**attributes, **given})
    exporter = open_exporter(environ, "METRICS")
    return MetricPusher(exporter, interval=interval, resource=resource, counted_since=counted_since)


def metrics_data(
    families: Iterable[Family], resource: Resource, *, started: int, now: int
) -> MetricsData:
    """Convert metrics to the type of the SDK's exporters; times are in ns."""
    metrics = [_metric(family, started, now) for family in families if family.samples]
    scope = ScopeMetrics(scope=_SCOPE, metrics=metrics, schema_url="")
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")]
    )


def _metric(family: Family, started: int, now: int) -> Metric:
    data: Gauge | Sum | Histogram
    if family.type == "histogram":
        data = Histogram(_histogram_points(family.samples, started, now), _CUMULATIVE)
    else:
        points = [
            NumberDataPoint(sample.labels, started, now, sample.value)
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        data = Sum(points, _CUMULATIVE, True) if family.type == "counter" else Gauge(points)
    name = f"{family.name}_total" if family.type == "counter" else family.name
    unit = _UNITS.get(unit_of(name), "1")
    return Metric(name=name, description=family.documentation, unit=unit, data=data)


def _histogram_points(
    samples: Sequence[Sample], started: int, now: int
) -> list[HistogramDataPoint]:
    buckets: dict[_Labels, list[tuple[float, float]]] = {}
    sums: dict[_Labels, float] = {}
    for sample in samples:
        labels = tuple((name, text) for name, text in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"].replace("+Inf", "inf"))
            buckets.setdefault(labels, []).append((bound, sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    points = []
    for labels, found in buckets.items():
        found.sort()
        counts = [int(found[0][1]), *(int(b[1] - a[1]) for a, b in pairwise(found))]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=started,
                time_unix_nano=now,
                count=sum(counts),
                sum=sums.get(labels, 0.0),
                bucket_counts=counts,
                explicit_bounds=[bound for bound, _ in found[:-1]],
                # The extremes are unknown. The protocol allows their absence, but the SDK's type
                # does not.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
        )
    return points
