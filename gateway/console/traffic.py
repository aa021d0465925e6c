"""Computes the traffic between two readings of the metrics. Does no I/O."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from sluicegate.gateway.telemetry.metric_reading import Series

METRICS = (
    *("sluicegate_requests", "sluicegate_request_duration_seconds", "sluicegate_items"),
    *("sluicegate_endpoint_calls", "sluicegate_endpoint_up", "sluicegate_endpoint_drained"),
    *("sluicegate_endpoint_ejected", "sluicegate_endpoint_in_flight_items"),
    *("sluicegate_endpoint_predicted_finish_seconds", "sluicegate_spilled_items"),
    *("sluicegate_limit_decisions", "sluicegate_config_reloads", "sluicegate_process_restarts"),
    *("sluicegate_region_limit_lease_seconds", "sluicegate_failed_items"),
)
"""The metrics that are read. The names of counters are without their ending `_total`."""
_HITS = frozenset({"memory_hit", "redis_hit", "hit", "stale"})
_TOO_MANY, _SERVER_ERROR = 429, 500


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the metrics at the Unix time `at`, in seconds."""

    at: float
    values: dict[Series, float]


class ModelTraffic(msgspec.Struct, kw_only=True):
    """The traffic of a model, or of all models if the name is empty. Rates are per second."""

    name: str
    requests: float = 0.0
    errors: float = 0.0
    refused: float = 0.0
    items: float = 0.0
    hit_ratio: float | None = None
    latencies: tuple[float | None, float | None, float | None] = (None, None, None)
    """The latencies p50, p95 and p99 of successful requests, in seconds."""

    @property
    def error_ratio(self) -> float | None:
        """The fraction of requests with a 5xx status, or `None` if there are no requests."""
        return self.errors / self.requests if self.requests else None


class RegionTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The calls to a region, and the state of its backends. Rates are per second."""

    name: str
    calls: float = 0.0
    failed: float = 0.0
    spilled: float = 0.0
    in_flight: float = 0.0
    finish: float | None = None
    """The predicted finish time of the fastest ready backend, in seconds."""
    ready: int = 0
    drained: int = 0
    ejected: int = 0
    endpoints: int = 0


class Samples:
    """Groups series and their values by the name of the metric."""

    def __init__(self, values: Mapping[Series, float]) -> None:
        self._by_name: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for (name, labels), value in values.items():
            self._by_name[name].append((dict(labels), value))

    def of(self, name: str) -> Sequence[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series of a metric."""
        return self._by_name.get(name, ())


class RestartCause(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a restarted process, and the reason for the restart."""

    role: str
    reason: str


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic between two readings.

    `values` are the values of the last reading. `rates` are the increases per second between the
    readings. `restarts` are the restarts of the last five minutes. Restarts between the readings
    alone would be shown too briefly.
    """

    at: float
    total: ModelTraffic
    models: list[ModelTraffic]
    regions: list[RegionTraffic]
    values: Samples
    rates: Samples
    restarts: Sequence[RestartCause] = ()

    def seen_restarts(self) -> list[RestartCause]:
        """Return the causes of the process restarts that happened between the two readings.

        If several restarts have the same cause, the cause is returned once.
        """
        counted = self.rates.of("sluicegate_process_restarts_total")
        return [
            RestartCause(role=labels["role"], reason=labels["reason"])
            for labels, value in counted
            if value
        ]


def traffic_between(before: Reading, after: Reading) -> Traffic:
    """Return the traffic between two readings. There are no rates if both have the same time."""
    seconds = after.at - before.at
    values = Samples(after.values)
    rates = Samples(
        {
            series: max(0.0, value - before.values.get(series, 0.0)) / seconds
            for series, value in after.values.items()
            if seconds > 0
        }
    )
    models = _by_model(rates)
    return Traffic(
        at=after.at,
        total=models.pop(""),
        models=sorted(models.values(), key=lambda each: (-each.requests, each.name)),
        regions=_regions(values, rates),
        values=values,
        rates=rates,
    )


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return a quantile of a histogram, interpolated within its bucket.

    `share` is a fraction such as 0.95. `buckets` maps the upper bound of each bucket to its count.
    The counts are not cumulative.
    """
    rest = share * sum(buckets.values())
    if rest <= 0:
        return None
    lower = 0.0
    for bound in sorted(buckets):
        if rest <= buckets[bound]:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * rest / buckets[bound]
        rest -= buckets[bound]
        lower = bound
    return lower


def _by_model(rates: Samples) -> dict[str, ModelTraffic]:
    """Return the traffic of each model by name. The empty name stands for all models together."""
    by_model: dict[str, ModelTraffic] = {"": ModelTraffic(name="")}
    hits: defaultdict[str, float] = defaultdict(float)
    for labels, value in rates.of("sluicegate_requests_total"):
        for each in _both(by_model, labels):
            _count_request(each, int(labels["status"]), value)
    for labels, value in rates.of("sluicegate_items_total"):
        for each in _both(by_model, labels):
            each.items += value
            hits[each.name] += value if labels["source"] in _HITS else 0.0
    buckets = _durations(by_model, rates)
    for name, each in by_model.items():
        each.hit_ratio = hits[name] / each.items if each.items else None
        p50, p95, p99 = (quantile(buckets.get(name, {}), share) for share in (0.5, 0.95, 0.99))
        each.latencies = (p50, p95, p99)
    return by_model


def _durations(by_model: dict[str, ModelTraffic], rates: Samples) -> dict[str, dict[float, float]]:
    """Return a histogram of the durations of successful requests for each model."""
    buckets: dict[str, dict[float, float]] = {}
    for labels, value in rates.of("sluicegate_request_duration_seconds_bucket"):
        if labels.get("outcome", "ok") == "ok":
            bound = float(labels["le"])
            for each in _both(by_model, labels):
                counts = buckets.setdefault(each.name, {})
                counts[bound] = counts.get(bound, 0.0) + value
    return buckets


def _both(by_model: dict[str, ModelTraffic], labels: Mapping[str, str]) -> Sequence[ModelTraffic]:
    """Return the two objects to which a series belongs: for all models, and for its own model."""
    model = labels.get("model", "")
    if not model:
        return (by_model[""],)
    return by_model[""], by_model.setdefault(model, ModelTraffic(name=model))


def _count_request(each: ModelTraffic, status: int, value: float) -> None:
    each.requests += value
    if status == _TOO_MANY:
        each.refused += value
    elif status >= _SERVER_ERROR:
        each.errors += value


def _regions(values: Samples, rates: Samples) -> list[RegionTraffic]:
    names = [labels["region"] for labels, _ in values.of("sluicegate_endpoint_up")]
    return [_region(name, values, rates) for name in sorted(set(names))]


def _region(name: str, values: Samples, rates: Samples) -> RegionTraffic:
    def gauges(metric: str) -> dict[str, float]:
        found = values.of(f"sluicegate_endpoint_{metric}")
        return {labels["endpoint"]: value for labels, value in found if labels["region"] == name}

    calls = [
        (labels["outcome"] == "ok", value)
        for labels, value in rates.of("sluicegate_endpoint_calls_total")
        if labels["region"] == name
    ]
    up = gauges("up")
    drained = {endpoint for endpoint, value in gauges("drained").items() if value > 0}
    ready = {endpoint for endpoint, value in up.items() if value > 0} - drained
    finish = gauges("predicted_finish_seconds")
    return RegionTraffic(
        name=name,
        calls=sum(value for _, value in calls),
        failed=sum(value for is_ok, value in calls if not is_ok),
        spilled=sum(
            value
            for labels, value in rates.of("sluicegate_spilled_items_total")
            if labels["to_region"] == name
        ),
        in_flight=sum(gauges("in_flight_items").values()),
        finish=min((finish[one] for one in ready & finish.keys()), default=None),
        ready=len(ready),
        drained=len(drained),
        ejected=sum(value > 0 for value in gauges("ejected").values()),
        endpoints=len(up),
    )
