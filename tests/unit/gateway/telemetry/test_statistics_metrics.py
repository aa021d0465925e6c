"""Every field of the components' statistics is a declared metric."""

from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from backends.telemetry.catalogue import backend_metrics
from gateway.app.clock_watch import ClockSkews
from gateway.app.stats_reporter import WorkerStatistics
from gateway.batches.runner import RunnerStatistics
from gateway.cache.base import CacheStatistics
from gateway.dispatch.discovery import DiscoveryStatistics
from gateway.dispatch.statistics import CallStatistics, DispatchStatistics
from gateway.events.log import LogStatistics
from gateway.http.unsent_answers import UnsentStatistics
from gateway.idempotency.store import IdempotencyStatistics
from gateway.inference.coalescing import FlightStatistics
from gateway.inference.last_answers import StaleStatistics
from gateway.rate_limit.base import LimiterStatistics
from gateway.regional_limits.limits import SharesStatistics
from gateway.telemetry.catalogue import gateway_metrics
from gateway.telemetry.instruments import PREFIX
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.statistics_metrics import STATISTICS_METRICS
from gateway.workers.billing import BillingStatistics
from gateway.workers.budget_monitor import BudgetStatistics
from gateway.workers.request_log import RequestLogStatistics
from gateway.workers.shipper import ShipperStatistics
from gateway.workers.usage_rollup import RollupStatistics
from wire.metric_declaration import MetricKind, unit_of
from wire.otlp.statistics import TracingStatistics

_PARTS: dict[str, type[msgspec.Struct]] = {
    "cache": CacheStatistics,
    "coalescing": FlightStatistics,
    "stale": StaleStatistics,
    "limits": LimiterStatistics,
    "shares": SharesStatistics,
    "idempotency": IdempotencyStatistics,
    "dispatch": DispatchStatistics,
    "endpoints": CallStatistics,
    "discovery": DiscoveryStatistics,
    "events": LogStatistics,
    "tracing": TracingStatistics,
    "answers": UnsentStatistics,
    "clock": ClockSkews,
    "worker": WorkerStatistics,
    "shipper": ShipperStatistics,
    "billing": BillingStatistics,
    "rollup": RollupStatistics,
    "budgets": BudgetStatistics,
    "request_log": RequestLogStatistics,
    "batches": RunnerStatistics,
}
# By endpoint and region they are figures of `endpoints`.
_ELSEWHERE = {"dispatch": {"calls", "failed_calls", "retried", "hedged"}}


def fields(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """Yield the fields of a statistics class, those of nested ones as `outer.inner`."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from fields(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


@pytest.mark.parametrize("part", STATISTICS_METRICS)
def test_every_field_of_a_part_is_published(part: str) -> None:
    named = {field_metric.field for field_metric in STATISTICS_METRICS[part]}

    assert named == set(fields(_PARTS[part])) - _ELSEWHERE.get(part, set())


@pytest.mark.parametrize("part", STATISTICS_METRICS)
def test_figures_fit_the_labels_of_declared_metrics(part: str) -> None:
    declared = gateway_metrics()

    for field_metric in STATISTICS_METRICS[part]:
        assert len(field_metric.labels) <= len(declared[PREFIX + field_metric.metric].labels), (
            field_metric
        )


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in [*gateway_metrics().values(), *backend_metrics().values()]:
        is_counter = metric.kind is MetricKind.COUNTER

        assert metric.name.endswith("_total") == is_counter, metric
        assert (metric.kind is MetricKind.HISTOGRAM) == bool(metric.buckets), metric
        assert metric.unit == unit_of(metric.name), metric
        assert metric.help.endswith("."), metric
        assert not {"tenant", "key", "input"} & set(metric.labels), metric


def test_running_totals_become_counters_that_survive_a_new_part() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)

    for led in (5, 7, 2):  # the third is of a part that began anew
        metrics.statistics("coalescing", FlightStatistics(in_flight=1, led=led, joined=0))

    labels = {"role": "led"}
    assert registry.get_sample_value("sluicegate_coalescing_items_total", labels) == 9


def test_parts_with_numbers_add_up_their_counters() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry)

    for part, events in (("billing", 3), ("billing_1", 4)):
        metrics.statistics(
            part,
            BillingStatistics(events=events, duplicates=0, dead=0, lost=0, lag=events, failures=0),
        )

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sluicegate_{name}", labels)

    assert value("billed_events_total", result="counted") == 7
    assert value("billing_lag_seconds", stream="1") == 4
