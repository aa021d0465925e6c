"""Declares metrics, beside the field or the code that counts them.

A field of statistics names its metric in `Annotated`: `hits: Annotated[int, LOOKUPS("memory")]`.
`read_samples` reads such fields. `tools/reference/metrics_page.py` collects all declarations.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, Self, get_args, get_origin, get_type_hints

import msgspec

from sluicegate.wire.durations import SECONDS

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order of its declaration."""


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
    aggregation: Aggregation = Aggregation.SUM
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""

    def __call__(self, *labels: str) -> "Series":
        """Return the series with these values of the first labels."""
        return Series(self, labels)

    @property
    def family(self) -> str:
        """The name without `_total`, which the metrics library appends to the names of counters."""
        return self.name.removesuffix("_total")


class Series(NamedTuple):
    """Names a metric, and the values of its first labels."""

    metric: MetricDeclaration
    labels: Labels = ()


def counter(name: str, text: str, *labels: str) -> MetricDeclaration:
    """Declare a counter. `text` explains it to operators."""
    return MetricDeclaration(name=name, kind=MetricKind.COUNTER, help=text, labels=labels)


def gauge(
    name: str, text: str, *labels: str, over: Aggregation = Aggregation.SUM
) -> MetricDeclaration:
    """Declare a gauge. `over` combines the values of several processes."""
    return MetricDeclaration(
        name=name, kind=MetricKind.GAUGE, help=text, labels=labels, aggregation=over
    )


def histogram(name: str, text: str, *labels: str) -> MetricDeclaration:
    """Declare a histogram of durations, with the buckets `SECONDS`."""
    return MetricDeclaration(
        name=name, kind=MetricKind.HISTOGRAM, help=text, labels=labels, buckets=SECONDS
    )


LABEL: Final = "label"
"""Marks a field of statistics whose value is a label of all metrics of its class."""


Sample = tuple[MetricDeclaration, Labels, Any, str]
"""A series and its value, with the path of the value's field, such as `cache.memory.hits`.

The value of a histogram is a pair: the counts by bucket, and the sum.
"""


def read_samples(
    statistics: msgspec.Struct, *, path: str = "", given: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Sample]:
    """Yield a sample for each declared series of `statistics`, and of the structs in its fields.

    The labels of a sample are the values of fields that `LABEL` marks, the labels in the
    annotation, and the keys of a field that is a mapping, in this order. `given` replaces labels in
    annotations. A text is the state of a circuit breaker. Paths begin with `path`.
    """
    return _read(statistics, (), path, given)


def declared_by(kind: type[msgspec.Struct]) -> Iterator[MetricDeclaration]:
    """Yield the metrics that the fields of a class of statistics name."""
    for _, series in _fields(kind).series:
        yield from (each.metric for each in series)


class _Fields(NamedTuple):
    """Lists fields of a class: those with labels, those with metrics, and all others."""

    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[Series, ...]], ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, kind: type[msgspec.Struct]) -> Self:
        hints = {
            name: get_args(hint)[1:] if get_origin(hint) is Annotated else ()
            for name, hint in get_type_hints(kind, include_extras=True).items()
            if name in kind.__struct_fields__
        }
        series = {name: tuple(_series(marks)) for name, marks in hints.items()}
        return cls(
            labels=tuple(name for name, marks in hints.items() if LABEL in marks),
            series=tuple((name, found) for name, found in series.items() if found),
            others=tuple(name for name, found in series.items() if not found),
        )


@cache
def _fields(kind: type[msgspec.Struct]) -> _Fields:
    return _Fields.of(kind)


def _series(marks: tuple[object, ...]) -> Iterator[Series]:
    for mark in marks:
        if isinstance(mark, Series):
            yield mark
        elif isinstance(mark, MetricDeclaration):
            yield Series(mark)


def _read(
    statistics: msgspec.Struct, above: Labels, path: str, given: Mapping[str, str]
) -> Iterator[Sample]:
    fields = _fields(type(statistics))
    above += tuple(getattr(statistics, name) for name in fields.labels)
    for name, all_series in fields.series:
        value, field = getattr(statistics, name), path + name
        for metric, annotated in all_series:
            labels = (*above, *(given.get(label, label) for label in annotated))
            if isinstance(value, Mapping):
                for key, one in value.items():
                    yield metric, labels + ((key,) if isinstance(key, str) else key), one, field
            else:
                number = float(value != "closed") if isinstance(value, str) else value
                yield metric, labels, number, field
    for name in fields.others:
        value = getattr(statistics, name)
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, msgspec.Struct):
                yield from _read(each, above, f"{path}{name}.", given)


UNITS: Final = ("seconds", "bytes", "ratio", "tokens", "items")
"""The units that names end in, before `_total`."""


def unit_of(name: str) -> str:
    """Return the base unit at the end of a metric's name, or "" if the metric is a count."""
    last = name.removesuffix("_total").rpartition("_")[2]
    return last if last in UNITS else ""
