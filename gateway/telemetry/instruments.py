"""Creates the counters, gauges and histograms (instruments) of declared metrics on first use.

A metric's name is its name in the catalogue without `sluicegate_`. A name that is not in the
catalogue raises `KeyError`, so that every metric on the metrics page is documented.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.telemetry.catalogue import gateway_metrics
from wire.metric_declaration import MetricDeclaration, MetricKind

PREFIX: Final = "sluicegate_"
Labels = tuple[str, ...]
NO_LABELS: Final[Labels] = ()


class TalliedHistogram(Histogram):
    """A histogram that can record many observations in one call."""

    def add(self, counts: Sequence[int], total: float) -> None:
        """Record observations.

        `counts` holds their number in each bucket, and `total` the sum of their values.
        """
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


class Instruments:
    """Writes metric values to `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._declared: Mapping[str, MetricDeclaration] = gateway_metrics()
        # `Any`: counters, gauges and histograms have different methods
        self._families: dict[str, Any] = {}
        self._children: dict[tuple[str, Labels], Any] = {}
        self._values: dict[tuple[str, Labels], float] = {}
        self._totals: dict[tuple[str, str, Labels], float] = {}

    def add(self, name: str, labels: Labels = NO_LABELS, amount: float = 1.0) -> None:
        """Add `amount` to a counter."""
        self._child(name, labels).inc(amount)

    def set_gauge(self, name: str, value: float, labels: Labels = NO_LABELS) -> None:
        """Set a gauge."""
        if self._values.get((name, labels)) != value:
            self._values[name, labels] = value
            self._child(name, labels).set(value)

    def set_total(
        self, name: str, total: float, labels: Labels = NO_LABELS, *, source: str = ""
    ) -> None:
        """Increment a counter by the growth of a running total since the last call.

        `source` names where the running total comes from. If `total` is less than at the last call,
        the source has started again from 0.
        """
        key = (source, name, labels)
        grown = total - self._totals.get(key, 0.0)
        self._totals[key] = total
        if grown or (name, labels) not in self._children:
            self._child(name, labels).inc(grown if grown >= 0 else total)

    def begin_total(self, name: str, total: float, labels: Labels = NO_LABELS) -> None:
        """Set the running total from which the next `set_total` computes the growth.

        The counter itself does not change. Use this for running totals that began before this
        process. Only the first call has an effect.
        """
        self._totals.setdefault(("", name, labels), total)

    def record(self, name: str, value: float, labels: Labels, *, source: str) -> None:
        """Set a gauge to `value`. For a counter, `value` is a running total; see `set_total`."""
        if self._declared[PREFIX + name].kind is MetricKind.COUNTER:
            self.set_total(name, value, labels, source=source)
        else:
            self.set_gauge(name, value, labels)

    def add_durations(self, name: str, labels: Labels, counts: Sequence[int], total: float) -> None:
        """Record observations in a histogram.

        `counts` holds their number in each bucket, and `total` the sum of their values.
        """
        if any(counts):
            self._child(name, labels).add(counts, total)

    def retain(self, names: Iterable[str], keep: Collection[Labels]) -> None:
        """Hide all series of the gauges `names`, except series whose labels are in `keep`.

        Setting a hidden series shows the series again.
        """
        for name in names:
            for labels in [labels for (one, labels) in self._values if one == name]:
                if labels not in keep:
                    # A value cannot be removed from the files, so NaN replaces the value. The
                    # metrics page omits NaN.
                    self._child(name, labels).set(math.nan)
                    del self._values[name, labels]

    def _child(self, name: str, labels: Labels) -> Any:
        child = self._children.get((name, labels))
        if child is None:
            family = self._families.get(name) or self._open(name)
            child = self._children[name, labels] = family.labels(*labels) if labels else family
        return child

    def _open(self, name: str) -> Any:
        declared = self._declared[PREFIX + name]
        if declared.kind is MetricKind.COUNTER:
            family: Any = Counter(
                declared.family, declared.help, declared.labels, registry=self._registry
            )
        elif declared.kind is MetricKind.GAUGE:
            family = Gauge(
                declared.name,
                declared.help,
                declared.labels,
                registry=self._registry,
                multiprocess_mode=declared.aggregation.value,
            )
        else:
            family = TalliedHistogram(
                declared.name,
                declared.help,
                declared.labels,
                buckets=declared.buckets,
                registry=self._registry,
            )
        self._families[name] = family
        return family
