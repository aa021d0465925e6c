"""Collects the declared metrics, and writes their reference."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

import msgspec

from sluicegate.wire.metric_declaration import MetricDeclaration, Series, declared_by
from tools.reference.markdown import NOTE

_HEAD = f"""\
# Metrics

Every metric of a gateway machine and of a backend.
{NOTE}[Watch](../operations/watch.md#metrics) explains how to scrape and push metrics.

- Labels have fixed sets of values. No label holds a tenant, a key or a text.
- A gateway machine has one page: `/metrics` of the operators' listener. Counters and histograms
  add up all its processes, including processes that have ended. Gauges are summed, unless the
  kind is `least` or `most`.
- A histogram has the series `_bucket`, `_sum` and `_count`. Its buckets range from 10 µs to
  10 s, except for durations of revisions.
"""
GATEWAY: Final = {
    "Requests, items and limits": (
        *(
            "sluicegate.gateway.telemetry.metrics",
            "sluicegate.gateway.telemetry.phases",
            "sluicegate.gateway.telemetry.guard_verdicts",
            "sluicegate.gateway.rate_limit.base",
        ),
        *("sluicegate.gateway.idempotency.store", "sluicegate.gateway.regional_limits.limits"),
    ),
    "Cache and coalescing": (
        *("sluicegate.gateway.redis.circuit_breaker", "sluicegate.gateway.cache.statistics"),
        *("sluicegate.gateway.inference.coalescing", "sluicegate.gateway.inference.last_answers"),
    ),
    "Regions and backends": (
        *("sluicegate.gateway.app.endpoint_metrics", "sluicegate.gateway.dispatch.statistics"),
        "sluicegate.gateway.dispatch.discovery",
    ),
    "Usage events, stream and billing": (
        *(
            "sluicegate.gateway.events.log",
            "sluicegate.gateway.workers.stream",
            "sluicegate.gateway.workers.backoff",
        ),
        *(
            "sluicegate.gateway.workers.shipper",
            "sluicegate.gateway.workers.billing",
            "sluicegate.gateway.workers.usage_rollup",
        ),
        *("sluicegate.gateway.workers.budget_monitor", "sluicegate.gateway.workers.request_log"),
        "sluicegate.gateway.batches.runner",
    ),
    "Processes and listeners": (
        *(
            "sluicegate.gateway.telemetry.process_metrics",
            "sluicegate.gateway.telemetry.restarts_collector",
        ),
        *(
            "sluicegate.gateway.app.stats_reporter",
            "sluicegate.gateway.app.clock_watch",
            "sluicegate.gateway.telemetry.tracing",
        ),
        *("sluicegate.gateway.admin.machine_metrics", "sluicegate.gateway.telemetry.edge_metrics"),
        "sluicegate.gateway.http.unsent_answers",
    ),
}
"""The modules that declare the metrics of a gateway machine, by the section of the page."""
BACKEND: Final = {
    "Items, encoders and queues": ("sluicegate.backends.types",),
    "Revisions, device and process": ("sluicegate.backends.telemetry.metrics",),
}


def metrics_page() -> str:
    """Return the page."""
    gateway = [part for title, names in GATEWAY.items() for part in _table(title, names)]
    backend = [part for title, names in BACKEND.items() for part in _table(title, names)]
    return "".join([_HEAD, "\n## Gateway machine\n", *gateway, "\n## Backend\n", *backend])


def declared_metrics(*sections: Mapping[str, tuple[str, ...]]) -> dict[str, MetricDeclaration]:
    """Return the metrics in the modules of `sections`, by default of all, by name."""
    names = [name for each in sections or (GATEWAY, BACKEND) for name in each.values()]
    return {metric.name: metric for modules in names for metric in _declared_in(modules)}


def _declared_in(modules: Iterable[str]) -> Iterator[MetricDeclaration]:
    found = (metric for name in modules for metric in _of_module(import_module(name)))
    return iter(dict.fromkeys(found))


def _of_module(module: ModuleType) -> Iterator[MetricDeclaration]:
    for value in list(vars(module).values()):
        if isinstance(value, MetricDeclaration):
            yield value
        elif isinstance(value, dict):
            yield from (key for key in value if isinstance(key, MetricDeclaration))
        elif isinstance(value, Series):
            yield value.metric
        elif isinstance(value, type) and issubclass(value, msgspec.Struct):
            yield from declared_by(value)


def _table(title: str, modules: Iterable[str]) -> Iterator[str]:
    yield f"\n### {title}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
    yield from map(_row, _declared_in(modules))


def _row(metric: MetricDeclaration) -> str:
    aggregation = metric.aggregation.name.lower()
    kind = metric.kind if aggregation == "sum" else f"{metric.kind}, {aggregation}"
    labels = ", ".join(metric.labels)
    return f"| `{metric.name}` | {kind} | {labels} | {metric.help} |\n"
