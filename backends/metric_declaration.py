"""Declares metrics: what a scrape of a gateway machine or of a backend may contain.

The lists are `gateway/telemetry/catalogue.py` and `backends/telemetry/catalogue.py`. Instruments
are made of them, and the page `docs/metrics.md`; tests hold dashboards and rules against them.
"""

from enum import StrEnum

import msgspec


class MetricKind(StrEnum):
    """Is the type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Aggregation(StrEnum):
    """Says how a gauge of several processes becomes one: by their sum, least, largest or newest."""

    SUM = "livesum"
    LEAST = "livemin"
    MOST = "livemax"
    NEWEST = "livemostrecent"


class MetricDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """Declares a metric by the name that Prometheus shows; that of a counter ends in `_total`.

    A name ends in its base unit, where it has one. Labels come from closed sets: never a tenant, a
    key or an input.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    aggregation: Aggregation = Aggregation.SUM
    processes: tuple[str, ...] = ()
    """Those that count it."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""

    @property
    def family(self) -> str:
        """The name without `_total`, which the metrics library adds to counters."""
        return self.name.removesuffix("_total")


class MetricSection(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the metrics of one subject, in the order that operators read them."""

    title: str
    metrics: tuple[MetricDeclaration, ...]


UNITS = ("seconds", "bytes", "ratio", "tokens", "items")
"""Units in which names end; a counter may have `_total` after it."""


def unit_of(name: str) -> str:
    """Return the base unit that the name of a metric ends in, empty where it counts."""
    last = name.removesuffix("_total").rpartition("_")[2]
    return last if last in UNITS else ""
