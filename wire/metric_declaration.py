"""Declares the metrics of gateways and backends.

The lists are in `gateway/telemetry/catalogue.py` and `backends/telemetry/catalogue.py`. They define
the exported metrics and the page `docs/reference/metrics.md`. Tests check that dashboards and rules
use only metrics of these lists.
"""

from enum import StrEnum

import msgspec


class MetricKind(StrEnum):
    """Names the Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Aggregation(StrEnum):
    """Tells how to combine the values of one gauge from several processes."""

    SUM = "livesum"
    LEAST = "livemin"
    MOST = "livemax"


class MetricDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """Declares a metric.

    A name ends in the base unit of its values, if they have one. A counter's name ends in `_total`.
    Labels have values from closed sets: never a tenant, a key or an input.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    aggregation: Aggregation = Aggregation.SUM
    processes: tuple[str, ...] = ()
    """The kinds of processes that export the metric."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""

    @property
    def family(self) -> str:
        """The name without `_total`, which the metrics library appends to the names of counters."""
        return self.name.removesuffix("_total")


class MetricSection(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the metrics of one subject, in their order on the page."""

    title: str
    metrics: tuple[MetricDeclaration, ...]


UNITS = ("seconds", "bytes", "ratio", "tokens", "items")
"""The units that names end in, before `_total`."""


def unit_of(name: str) -> str:
    """Return the base unit at the end of a metric's name, or "" if the metric is a count."""
    last = name.removesuffix("_total").rpartition("_")[2]
    return last if last in UNITS else ""
