"""Pushes metrics over OTLP as the `OTEL_*` variables say.

The pushed metrics are those that a scrape would return, as cumulative sums, gauges and histograms.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family, Sample

from sluicegate.wire.metric_declaration import unit_of
from sluicegate.wire.otlp.spans import CLOSE_WITHIN, open_exporter
from sluicegate.wire.otlp.variables import number

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_SCOPE: Final = InstrumentationScope("sluicegate")
_UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}
_Labels = tuple[tuple[str, str], ...]
_log = logging.getLogger(__name__)


class MetricPusher:
    """Exports metrics in the SDK's thread, so that no request waits for a collector."""

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
        self._started = time.time_ns() if counted_since is None else counted_since
        self.close_within = CLOSE_WITHIN

    async def run(
        self, read: Callable[[], Awaitable[Iterable[Family]]], stop: asyncio.Event
    ) -> None:
        """Push the metrics that `read` returns at every interval, and once more after `stop`.

        The SDK's thread calls `read` in this event loop.
        """
        loop = asyncio.get_running_loop()

        async def wait_for_metrics() -> Iterable[Family]:
            return await read()

        def collect(*_: Any, **__: Any) -> Any:  # `MetricsData`, which the SDK does not declare
            try:
                found = asyncio.run_coroutine_threadsafe(wait_for_metrics(), loop).result()
                now = time.time_ns()
                return metrics_data(found, self._resource, started=self._started, now=now)
            except Exception:  # noqa: BLE001 - a failed reading must not prevent later ones
                _log.exception("cannot read metrics")
                return None

        reader = PeriodicExportingMetricReader(self._exporter, self._interval * 1000)
        # The SDK's own instruments would hide the values that other processes counted.
        reader._set_collect_callback(collect)  # noqa: SLF001
        try:
            await stop.wait()
            await asyncio.to_thread(reader.shutdown, self.close_within * 1000)
        finally:
            # If a collector hangs, the SDK's thread outlives this loop.
            reader._set_collect_callback(_no_metrics)  # noqa: SLF001


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


def _no_metrics(*_: Any, **__: Any) -> Any:
    return None


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
