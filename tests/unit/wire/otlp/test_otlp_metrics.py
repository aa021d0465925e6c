"""Push of metrics: by the variables of OpenTelemetry, what a scrape shows, and never waited for."""

import asyncio
import math
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric as Family

from sluicegate.gateway.cache.statistics import BYTES
from sluicegate.gateway.telemetry.metric_files import add_up_dead, counted_since
from sluicegate.gateway.telemetry.metric_push import NoPush, push_from
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.wire.otlp.metrics import MetricPusher, open_pusher
from sluicegate.wire.otlp.variables import TracingProblem, is_push_wanted
from testing.waiting import until
from tests.support.otlp_sink import HttpSink

_ROUTE = "/v1/classify"


def families() -> list[Family]:
    """Return a counter, a gauge and a histogram of a gateway."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)
    for duration in (0.000004, 0.003, 20.0):
        metrics.request(_ROUTE, "sentiment", duration)
    metrics.instruments.set_gauge(BYTES, 7.0, ("memory",))
    metrics.flush()
    return list(registry.collect())


def broken_family() -> Family:
    """Return a histogram that no conversion accepts: its counts are infinite."""
    buckets = [("1", math.inf), ("+Inf", math.inf)]
    return HistogramMetricFamily("broken", "Broken.", buckets=buckets, sum_value=1)


async def read() -> Iterable[Family]:
    return families()


def open_from(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> MetricPusher:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return open_pusher(environ, {"service.name": "ours"})


def metrics_of(sink: HttpSink) -> dict[str, Metric]:
    """Return the metrics of the last push by their names."""
    (resource,) = sink.metrics[-1].resource_metrics
    return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


@pytest.mark.anyio
async def test_a_push_has_what_a_scrape_has(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, stop = HttpSink(), asyncio.Event()
    interval = {"OTEL_METRIC_EXPORT_INTERVAL": "20"}
    pusher = open_from(monkeypatch, sink.environment | interval)

    running = asyncio.create_task(pusher.run(read, stop))
    await until(lambda: len(sink.metrics) > 1, what="two pushes")
    stop.set()
    await running
    sink.stop()

    found = metrics_of(sink)
    (requests,) = found["sluicegate_requests_total"].sum.data_points
    (duration,) = found["sluicegate_request_duration_seconds"].histogram.data_points
    (cached,) = found["sluicegate_cache_bytes"].gauge.data_points
    assert found["sluicegate_requests_total"].sum.is_monotonic
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert found["sluicegate_requests_total"].sum.aggregation_temporality == cumulative
    assert (requests.as_double, cached.as_double) == (3.0, 7.0)
    assert (duration.count, duration.sum, sum(duration.bucket_counts)) == (3, 20.003004, 3)
    assert (duration.bucket_counts[0], duration.bucket_counts[-1]) == (1, 1)
    assert duration.explicit_bounds[0] == 0.00001
    # Receivers would show them as true.
    assert not duration.HasField("min")
    assert not duration.HasField("max")
    units = found["sluicegate_request_duration_seconds"].unit, found["sluicegate_cache_bytes"].unit
    assert units == ("s", "By")
    assert sink.headers[0]["path"] == "/v1/metrics"


@pytest.mark.anyio
async def test_totals_that_outlive_processes_do_not_begin_with_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sink, stop = HttpSink(), asyncio.Event()
    for name, value in sink.environment.items():
        monkeypatch.setenv(name, value)
    add_up_dead(tmp_path)  # the first process
    began = counted_since(tmp_path)
    add_up_dead(tmp_path)
    pusher = open_pusher(dict(sink.environment), {}, counted_since=counted_since(tmp_path))
    stop.set()

    await pusher.run(read, stop)
    sink.stop()

    (requests,) = metrics_of(sink)["sluicegate_requests_total"].sum.data_points
    assert requests.start_time_unix_nano == began


@pytest.mark.anyio
async def test_a_collector_that_does_not_answer_holds_up_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink, stop, is_read = HttpSink(), asyncio.Event(), asyncio.Event()
    sink.answers.clear()
    interval = {"OTEL_METRIC_EXPORT_INTERVAL": "1"}
    pusher = open_from(monkeypatch, sink.environment | interval)
    pusher.close_within = 0.05

    async def noted() -> Iterable[Family]:
        is_read.set()
        return families()

    running = asyncio.create_task(pusher.run(noted, stop))
    await is_read.wait()
    stop.set()
    await running

    assert not sink.answers.is_set()
    sink.stop()


@pytest.mark.anyio
async def test_after_the_end_the_thread_of_a_push_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink, stop, reads = HttpSink(), asyncio.Event(), 0
    sink.answers.clear()
    pusher = open_from(monkeypatch, sink.environment | {"OTEL_METRIC_EXPORT_INTERVAL": "1"})
    pusher.close_within = 0.05

    async def counted() -> Iterable[Family]:
        nonlocal reads
        reads += 1
        return families()

    running = asyncio.create_task(pusher.run(counted, stop))
    await until(lambda: reads > 0, what="a reading")
    stop.set()
    await running
    (thread,) = (one for one in threading.enumerate() if one.name.startswith("OtelPeriodic"))
    sink.stop()
    await asyncio.to_thread(thread.join, 60.0)

    assert not thread.is_alive()
    assert reads == 1


@pytest.mark.anyio
@pytest.mark.parametrize("failure", [OSError("not read"), [broken_family()]])
async def test_a_failed_reading_does_not_prevent_later_ones(
    monkeypatch: pytest.MonkeyPatch, failure: OSError | list[Family]
) -> None:
    sink, stop, failures = HttpSink(), asyncio.Event(), [failure]
    pusher = open_from(monkeypatch, sink.environment | {"OTEL_METRIC_EXPORT_INTERVAL": "1"})

    async def failing() -> Iterable[Family]:
        if not failures:
            return families()
        found = failures.pop()
        if isinstance(found, OSError):
            raise found
        return found

    running = asyncio.create_task(pusher.run(failing, stop))
    await until(lambda: len(sink.metrics) > 0, what="a push")
    stop.set()
    await running
    sink.stop()


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, False),
        ({"OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "prometheus, otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_metrics_are_pushed_where_that_is_asked_for(environ: dict[str, Any], wanted: bool) -> None:  # noqa: FBT001
    assert is_push_wanted(environ) is wanted
    assert isinstance(push_from(dict(environ), instance="x"), NoPush) is not wanted


def test_a_certificate_that_is_no_file_is_a_clear_error() -> None:
    environ = {"OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE": "/no/such"}

    with pytest.raises(TracingProblem, match="`/no/such`"):
        open_pusher(environ, {})
