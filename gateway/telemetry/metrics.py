"""Defines every metric of a gateway worker, in the order that operators read them.

Labels come from closed sets, such as task, status, served model, source or region, never from a
tenant, a key or an input. Processes write to files, see `metric_files`; the admin listener adds up.

Answers only add to Python numbers; `flush` adds these to the instruments, as an increment of an
instrument costs as much as a cache lookup. What limits refuse, or would, is counted directly.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Sequence
from functools import partial

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class TalliedHistogram(Histogram):
    """Adds many observations to a histogram at once."""

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add observations, given as counts per bucket and their sum."""
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


class _Durations:
    """Holds observations until the next flush."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def take(self) -> tuple[list[int], float]:
        """Return the observations since the last call."""
        seen = self.counts, self.total
        self.counts, self.total = [0] * len(self.counts), 0.0
        return seen


class GatewayMetrics:
    """Counts requests, items and work; each method is called in one line of the request path.

    Call `flush` about once a second and at the end; `kill -9` loses the counts since the last one.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._requests = counter(
            "sluicegate_requests", "Requests answered, by task and status.", ("task", "status")
        )
        self._duration = TalliedHistogram(
            "sluicegate_request_duration_seconds",
            "Time from the request's head to its answer, by task.",
            ("task",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._items = counter(
            "sluicegate_items",
            "Items answered, by model and how: hit, collapsed, computed, failed.",
            ("model", "source"),
        )
        self._rows = counter(
            "sluicegate_rows", "Rows that backends computed, by model.", ("model",)
        )
        self._tokens = counter(
            "sluicegate_tokens", "Tokens that backends computed, by model.", ("model",)
        )
        self._limited = counter(
            "sluicegate_rate_limited", "Requests refused by a limit, by its name.", ("policy",)
        )
        self._shadowed = counter(
            "sluicegate_rate_limit_shadowed",
            "Requests that a limit in shadow mode would have refused, by its name.",
            ("policy",),
        )
        self._statistics = Gauge(
            "sluicegate_worker",
            "Statistics of a worker's parts: cache, limits, routing, events.",
            ("part", "figure"),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._durations: dict[tuple[str, int], _Durations] = {}
        self._item_counts: Tally[tuple[str, str]] = Tally()
        self._row_counts: Tally[str] = Tally()
        self._token_counts: Tally[str] = Tally()

    def request(self, task: str, status: int, duration: float, count: int = 1) -> None:
        """Count answered requests that took `duration` seconds each."""
        durations = self._durations.get((task, status))
        if durations is None:
            durations = self._durations[task, status] = _Durations()
        durations.counts[bisect_left(_SECONDS, duration)] += count
        durations.total += duration * count

    def items(self, model: str, source: str, count: int) -> None:
        """Count `count` items of `model` that ended as `source`."""
        self._item_counts[model, source] += count

    def work(self, model: str, *, rows: int, tokens: int) -> None:
        """Count the rows and tokens that backends computed for a request."""
        self._row_counts[model] += rows
        self._token_counts[model] += tokens

    def flush(self) -> None:
        """Add the counts since the last call to the instruments."""
        for (task, status), durations in self._durations.items():
            counts, total = durations.take()
            self._requests.labels(task, str(status)).inc(sum(counts))
            self._duration.labels(task).add(counts, total)
        for (model, source), count in self._item_counts.items():
            self._items.labels(model, source).inc(count)
        for model, rows in self._row_counts.items():
            self._rows.labels(model).inc(rows)
            self._tokens.labels(model).inc(self._token_counts[model])
        for tally in (self._item_counts, self._row_counts, self._token_counts):
            tally.clear()

    def rate_limited(self, policy: str) -> None:
        """Count a request that the limit `policy` refused."""
        self._limited.labels(policy).inc()

    def shadowed(self, policy: str) -> None:
        """Count a request that the limit `policy`, in shadow mode, would have refused."""
        self._shadowed.labels(policy).inc()

    def statistics(self, part: str, statistics: msgspec.Struct) -> None:
        """Publish the numeric fields of a part's statistics; called about once a second."""
        for name, value in numbers(statistics).items():
            self._statistics.labels(part, name).set(value)


def numbers(statistics: msgspec.Struct, prefix: str = "") -> dict[str, float]:
    """Return the numeric fields of `statistics`, nested ones under `outer_inner`."""
    found: dict[str, float] = {}
    for name in statistics.__struct_fields__:
        value = getattr(statistics, name)
        if isinstance(value, msgspec.Struct):
            found |= numbers(value, f"{prefix}{name}_")
        elif isinstance(value, int | float):
            found[prefix + name] = float(value)
    return found
