"""Writes the page of all metrics: `python -m tools.metrics_page`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from backends.metric_declaration import MetricDeclaration, MetricSection
from backends.telemetry.catalogue import BACKEND_METRICS
from gateway.telemetry.catalogue import GATEWAY_METRICS

PATH = Path(__file__).parents[1] / "docs/metrics.md"
_HEAD = """\
# Metrics

Every metric of a gateway machine and of a backend.
This page is made of [`GATEWAY_METRICS`](../gateway/telemetry/catalogue.py) and
[`BACKEND_METRICS`](../backends/telemetry/catalogue.py) by `python -m tools.metrics_page`; tests
hold both lists against scrapes. How to scrape and push is in
[operations](operations/watch.md#metrics).

- Labels come from closed sets; none holds a tenant, a key or a text.
- A gateway machine has one page, `/metrics` of the operators' listener. Counters and histograms
  are those of all its processes together, those that ended included; gauges are added up, or
  `least`, `most` or `newest` of the processes where the kind says so.
- A histogram has the series `_bucket`, `_sum` and `_count`. Buckets of durations go from 10 µs
  to 10 s, but for those of revisions.
"""


def metrics_page() -> str:
    """Return the page."""
    gateway = _tables(GATEWAY_METRICS)
    backend = _tables(BACKEND_METRICS)
    parts = [_HEAD, "\n## Of a gateway machine\n", *gateway, "\n## Of a backend\n", *backend]
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


if __name__ == "__main__":
    PATH.write_text(metrics_page(), "utf-8")
