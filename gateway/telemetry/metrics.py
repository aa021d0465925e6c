"""Every instrument of a gateway worker, named once, in the order an operator reads them.

Labels come from closed sets (task, status, model as served, source, region), never from a tenant, a
key or an input. Workers write to files in `PROMETHEUS_MULTIPROC_DIR`; the admin listener adds up.
"""

import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


def ask_for_the_process_once() -> None:
    """Let every metric made from now on remember the process's id.

    The library asks the system for it at each increment, in case of a fork: that was a seventh of
    a cache hit, and nothing here forks.
    """
    process = os.getpid()
    values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]
        process_identifier=lambda: process
    )


class GatewayMetrics:
    """Counters and histograms; each method is one line of the request path."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "sluicegate_requests",
            "Requests answered, by task and status.",
            ("task", "status"),
            registry=registry,
        )
        self._duration = Histogram(
            "sluicegate_request_duration_seconds",
            "Time from the request's body to its answer, by task.",
            ("task",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._items = Counter(
            "sluicegate_items",
            "Items answered, by model and how: hit, collapsed, computed, failed.",
            ("model", "source"),
            registry=registry,
        )
        self._rows = Counter(
            "sluicegate_rows",
            "Rows that backends computed, by model.",
            ("model",),
            registry=registry,
        )
        self._tokens = Counter(
            "sluicegate_tokens",
            "Tokens that backends computed, by model.",
            ("model",),
            registry=registry,
        )
        self._limited = Counter(
            "sluicegate_rate_limited",
            "Requests refused by a limit, by its name.",
            ("policy",),
            registry=registry,
        )
        self._statistics = Gauge(
            "sluicegate_worker",
            "What a worker's parts say of themselves: cache, limits, routing, events.",
            ("part", "figure"),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._request_children: dict[tuple[str, int], Counter] = {}
        self._duration_children: dict[str, Histogram] = {}
        self._item_children: dict[tuple[str, str], Counter] = {}
        self._work_children: dict[str, tuple[Counter, Counter]] = {}

    def request(self, task: str, status: int, duration: float) -> None:
        """Count an answered request that took `duration` seconds."""
        counter = self._request_children.get((task, status))
        if counter is None:
            counter = self._requests.labels(task, str(status))
            self._request_children[task, status] = counter
        counter.inc()
        histogram = self._duration_children.get(task)
        if histogram is None:
            histogram = self._duration_children[task] = self._duration.labels(task)
        histogram.observe(duration)

    def items(self, model: str, source: str, count: int) -> None:
        """Count `count` items of `model` that ended as `source`."""
        counter = self._item_children.get((model, source))
        if counter is None:
            counter = self._item_children[model, source] = self._items.labels(model, source)
        counter.inc(count)

    def work(self, model: str, *, rows: int, tokens: int) -> None:
        """Count what backends computed for a request."""
        counters = self._work_children.get(model)
        if counters is None:
            counters = self._rows.labels(model), self._tokens.labels(model)
            self._work_children[model] = counters
        counters[0].inc(rows)
        counters[1].inc(tokens)

    def rate_limited(self, policy: str) -> None:
        """Count a request that the limit `policy` refused."""
        self._limited.labels(policy).inc()

    def statistics(self, part: str, figures: Mapping[str, float]) -> None:
        """Show what a part says of itself; called about once a second."""
        for name, value in figures.items():
            self._statistics.labels(part, name).set(value)
