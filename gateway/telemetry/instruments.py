"""Creates the counters, gauges and histograms (instruments) of declared metrics on first use."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sluicegate.wire.metric_declaration import Labels, MetricDeclaration, MetricKind, read_samples

NO_LABELS: Final[Labels] = ()
COMPONENT: Final = "$component"
"""Stands for the name of a component among the labels of its statistics."""
NUMBER: Final = "$number"
"""Stands for the number at the end of a component's name, such as 1 in `billing_1`."""
_NUMBERED: Final = re.compile(r".+_(\d+)")


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
        # `Any`: counters, gauges and histograms have different methods
        self._families: dict[str, Any] = {}
        self._children: dict[tuple[str, Labels], Any] = {}
        self._values: dict[tuple[str, Labels], float] = {}
        self._totals: dict[tuple[str, str, Labels], float] = {}

    def add(
        self, metric: MetricDeclaration, labels: Labels = NO_LABELS, amount: float = 1.0
    ) -> None:
        """Add `amount` to a counter."""
        self._child(metric, labels).inc(amount)

    def set_gauge(
        self, metric: MetricDeclaration, value: float, labels: Labels = NO_LABELS
    ) -> None:
        """Set a gauge."""
        if self._values.get((metric.name, labels)) != value:
            self._values[metric.name, labels] = value
            self._child(metric, labels).set(value)

    def set_total(
        self,
        metric: MetricDeclaration,
        total: float,
        labels: Labels = NO_LABELS,
        *,
        source: str = "",
    ) -> None:
        """Increment a counter by the growth of a running total since the last call.

        `source` names where the running total comes from. If `total` is less than at the last call,
        the source has started again from 0.
        """
        key = (source, metric.name, labels)
        grown = total - self._totals.get(key, 0.0)
        self._totals[key] = total
        if grown or (metric.name, labels) not in self._children:
            self._child(metric, labels).inc(grown if grown >= 0 else total)

    def begin_total(
        self, metric: MetricDeclaration, total: float, labels: Labels = NO_LABELS
    ) -> None:
        """Set the running total from which the next `set_total` computes the growth.

        The counter itself does not change. Use this for running totals that began before this
        process. Only the first call has an effect.
        """
        self._totals.setdefault(("", metric.name, labels), total)

    def add_durations(
        self, metric: MetricDeclaration, labels: Labels, counts: Sequence[int], total: float
    ) -> None:
        """Record observations in a histogram.

        `counts` holds their number in each bucket, and `total` the sum of their values.
        """
        if any(counts):
            self._child(metric, labels).add(counts, total)

    def publish(self, component: str, statistics: msgspec.Struct) -> None:
        """Publish the fields of a component's statistics that have a metric.

        The field of a counter holds a running total; see `set_total`. The component's name may end
        in a number: `billing_1`.
        """
        numbered = _NUMBERED.fullmatch(component)
        given = {COMPONENT: component, NUMBER: numbered[1] if numbered else "0"}
        samples = read_samples(statistics, path=f"{component}.", given=given)
        for metric, labels, value, field in samples:
            if metric.kind is MetricKind.COUNTER:
                self.set_total(metric, value, labels, source=field)
            else:
                self.set_gauge(metric, float(value), labels)

    def retain(self, metrics: Iterable[MetricDeclaration], keep: Collection[Labels]) -> None:
        """Hide all series of the gauges `metrics`, except series whose labels are in `keep`.

        Setting a hidden series shows the series again.
        """
        for metric in metrics:
            for labels in [labels for (one, labels) in self._values if one == metric.name]:
                if labels not in keep:
                    # A value cannot be removed from the files, so NaN replaces the value. The
                    # metrics page omits NaN.
                    self._child(metric, labels).set(math.nan)
                    del self._values[metric.name, labels]

    def _child(self, metric: MetricDeclaration, labels: Labels) -> Any:
        child = self._children.get((metric.name, labels))
        if child is None:
            family = self._families.get(metric.name) or self._open(metric)
            child = family.labels(*labels) if labels else family
            self._children[metric.name, labels] = child
        return child

    def _open(self, metric: MetricDeclaration) -> Any:
        made: dict[MetricKind, Callable[..., Any]] = {
            MetricKind.COUNTER: Counter,
            MetricKind.GAUGE: partial(Gauge, multiprocess_mode=metric.aggregation.value),
            MetricKind.HISTOGRAM: partial(TalliedHistogram, buckets=metric.buckets),
        }
        family = self._families[metric.name] = made[metric.kind](
            metric.family, metric.help, metric.labels, registry=self._registry
        )
        return family
