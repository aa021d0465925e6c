"""Writes the reference of the metrics, from their declarations."""

from collections.abc import Iterable, Iterator

from backends.telemetry.catalogue import BACKEND_METRICS
from gateway.telemetry.catalogue import GATEWAY_METRICS
from tools.reference.markdown import NOTE
from wire.metric_declaration import MetricDeclaration, MetricSection

_HEAD = f"""\
# Metrics

Every metric of a gateway machine and of a backend.
{NOTE}[Watch](../operations/watch.md#metrics) explains how to scrape and push metrics.

- Labels have fixed sets of values. No label holds a tenant, a key or a text.
- A gateway machine has one page: `/metrics` of the operators' listener. Counters and histograms
  add up all its processes, including processes that have ended. Gauges are summed, unless the
  kind is `least`, `most` or `newest`.
- A histogram has the series `_bucket`, `_sum` and `_count`. Its buckets range from 10 µs to
  10 s, except for durations of revisions.
"""


def metrics_page() -> str:
    """Return the page."""
    gateway = _tables(GATEWAY_METRICS)
    backend = _tables(BACKEND_METRICS)
    parts = [_HEAD, "\n## Gateway machine\n", *gateway, "\n## Backend\n", *backend]
    return "".join(parts)


def _tables(sections: Iterable[MetricSection]) -> Iterator[str]:
    for section in sections:
        yield f"\n### {section.title}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
        yield from map(_row, section.metrics)


def _row(metric: MetricDeclaration) -> str:
    aggregation = metric.aggregation.name.lower()
    kind = metric.kind if aggregation == "sum" else f"{metric.kind}, {aggregation}"
    labels = ", ".join(metric.labels)
    return f"| `{metric.name}` | {kind} | {labels} | {metric.help} |\n"
