"""Counts a worker's requests and items, and publishes the statistics of its components.

On the request path, methods only increment Python numbers, because incrementing a metric of the
library takes as long as a cache lookup. `flush` later adds these numbers to the metrics. Refusals
by limits are rare, so they increment the metrics directly.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from sluicegate.gateway.errors import (
    BudgetExhausted,
    DeadlineExceeded,
    NotCached,
    Overloaded,
    RateLimited,
    RequestTimeout,
)
from sluicegate.gateway.telemetry.exemplars import ExemplarFile
from sluicegate.gateway.telemetry.guard_decisions import RecentDecisions
from sluicegate.gateway.telemetry.guard_verdicts import Counts, GuardVerdicts
from sluicegate.gateway.telemetry.instruments import Instruments
from sluicegate.gateway.telemetry.phases import DURATIONS, PhaseDurations
from sluicegate.gateway.telemetry.refused_tenants import RefusedTenants
from sluicegate.gateway.types import RevisionUsage, Source
from sluicegate.wire.durations import SECONDS, DurationCounts
from sluicegate.wire.guards import GuardConfig
from sluicegate.wire.metric_declaration import Aggregation, Series, counter, gauge, histogram

_REQUESTS: Final = counter(
    "sluicegate_requests_total",
    "Answered inference requests. `route` is the template of a route, or `grpc`. `model` is empty "
    "if no model was found. Responses replayed for an idempotency key are counted only in "
    "`idempotent_replays_total`. Requests without inference are not counted.",
    *("route", "model", "status"),
)
_REQUEST_DURATION: Final = histogram(
    "sluicegate_request_duration_seconds",
    "Time from the head of a request to its response. On the fast path, the time starts when the "
    "whole request has arrived. `outcome`: `ok`, `client_error`, `rate_limited`, `overloaded`, "
    "`deadline`, `server_error`.",
    *("route", "model", "outcome"),
)
_ITEMS: Final = counter(
    "sluicegate_items_total",
    "Items by `source`: `memory_hit`, `redis_hit`, `stale`, `collapsed` (coalesced), `computed`, "
    "`refused` (invalid, or no capacity or time), `failed`.",
    *("model", "revision", "source"),
)
_REVISION_ITEMS: Final = counter(
    "sluicegate_arm_items_total",
    "Items of models with a traffic split or a shadow revision. `arm` is the number of the "
    "revision that computed the result.",
    *("model", "arm", "source"),
)
_ROWS: Final = counter("sluicegate_rows_total", "Rows that backends computed.", "model")
_TOKENS: Final = counter("sluicegate_tokens_total", "Tokens that backends computed.", "model")
_SHED: Final = counter(
    "sluicegate_requests_shed_total",
    "Requests that an overloaded worker refused before processing them. `reason`: `worker_delay` "
    "(the event loop was late), `deadline` (the deadline could not be met).",
    "reason",
)
LIMIT_DECISIONS: Final = counter(
    "sluicegate_limit_decisions_total",
    "Limit decisions, one for each request. `decision`: `allowed` (`policy` is empty), `refused` "
    "(by the limit `policy`), `shadow_refused` (by `policy` in shadow mode, which refuses "
    "nothing).",
    *("policy", "decision"),
)
DEPENDENCY_UP: Final = gauge(
    "sluicegate_dependency_up",
    "Whether every worker reaches `cache_redis` and `state_redis`, and the operators' listener "
    "reaches the `ledger`.",
    "dependency",
    over=Aggregation.LEAST,
)
OK: Final = "ok"
_OUTCOMES: Final = {
    RateLimited.code: "rate_limited",
    BudgetExhausted.code: "rate_limited",
    Overloaded.code: "overloaded",
    DeadlineExceeded.code: "deadline",
    RequestTimeout.code: "client_error",
    NotCached.code: "client_error",
}
_FIRST_ERROR, _FIRST_FAULT = 400, 500


def outcome_of(status: int, code: str) -> str:
    """Return the outcome of a request from its status and error code."""
    if status < _FIRST_ERROR:
        return OK
    return _OUTCOMES.get(code) or ("client_error" if status < _FIRST_FAULT else "server_error")


class GatewayMetrics:
    """Counts requests, items, rows and tokens. The request path calls its methods.

    Call `flush` about once a second and before the process ends. If the process is killed, the
    counts since the last `flush` are lost.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.instruments = Instruments(registry)
        self.phases = PhaseDurations()
        self.exemplars = ExemplarFile()
        self.refused_tenants = RefusedTenants()
        self.decisions = RecentDecisions()
        self._durations: dict[tuple[str, str, int, str], DurationCounts] = {}
        self._items: Tally[tuple[str, str, str]] = Tally()
        self._revision_items: Tally[tuple[str, str, str]] = Tally()
        self._rows: Tally[str] = Tally()
        self._tokens: Tally[str] = Tally()
        self._shed: Tally[str] = Tally()
        self._counted: Tally[Series] = Tally()

    def request(
        self,
        route: str,
        model: str,
        duration: float,
        count: int = 1,
        *,
        status: int = 200,
        code: str = "",
    ) -> None:
        """Count `count` answered requests that took `duration` seconds each."""
        key = (route, model, status, code)
        durations = self._durations.get(key)
        if durations is None:
            durations = self._durations[key] = DurationCounts(SECONDS)
        # This is the code of `DurationCounts.add`, inlined to save a call for each hit.
        durations.counts[bisect_left(SECONDS, duration)] += count
        durations.total += duration * count

    def exemplar(
        self,
        route: str,
        model: str,
        duration: float,
        traceparent: str,
        *,
        status: int = 200,
        code: str = "",
    ) -> None:
        """Store a request with the trace context `traceparent` as an exemplar."""
        labels = (route, model, outcome_of(status, code))
        self.exemplars.add(labels, duration, traceparent[3:35])

    def items(
        self,
        model: str,
        revision: str,
        source: str,
        count: int,
        *,
        rows: int = 0,
        tokens: int = 0,
    ) -> None:
        """Count items of a revision with the outcome `source`, and their rows and tokens."""
        self._items[model, revision, source] += count
        if rows:  # this is the code of `work`, inlined to save a call
            self._rows[model] += rows
            self._tokens[model] += tokens

    def revision_items(self, model: str, usage: RevisionUsage) -> None:
        """Count the items of `model` in `usage`, which belong to one revision, by their outcome."""
        for source in Source:
            if count := getattr(usage, source):
                self._revision_items[model, usage.arm, source] += count

    def work(self, model: str, *, rows: int, tokens: int) -> None:
        """Count the rows and tokens that backends computed for a request."""
        self._rows[model] += rows
        self._tokens[model] += tokens

    def verdicts(
        self, verdicts: GuardVerdicts, of: Mapping[str, GuardConfig], tenant: str, *, texts: bool
    ) -> GuardVerdicts:
        """Count the verdicts `of` guards about a request of `tenant`, and keep some of them.

        Return them with the decisions that may be kept, with `texts` if the tenant agreed.
        """
        self.count(verdicts.counts)
        kept = self.decisions.prepared(verdicts.decisions, of, tenant, texts=texts)
        verdicts = replace(verdicts, decisions=kept)
        self.sample(verdicts)
        return verdicts

    def sample(self, verdicts: GuardVerdicts) -> None:
        """Keep some of the verdicts that `verdicts` has returned."""
        self.decisions.add(verdicts.name, verdicts.decisions)

    def count(self, counts: Counts, answers: int = 1) -> None:
        """Add `counts` to their counters for each of so many equal answers."""
        for series, count in counts:
            self._counted[series] += count * answers

    def flush(self) -> None:
        """Add the counts since the last call to the instruments."""
        instruments = self.instruments
        for (route, model, status, code), durations in self._durations.items():
            counts, total = durations.take()
            if count := sum(counts):
                instruments.add(_REQUESTS, (route, model, str(status)), count)
                labels = (route, model, outcome_of(status, code))
                instruments.add_durations(_REQUEST_DURATION, labels, counts, total)
        for phase, counts, total in self.phases.take():
            instruments.add_durations(DURATIONS, (phase,), counts, total)
        for metric, tally in ((_ITEMS, self._items), (_REVISION_ITEMS, self._revision_items)):
            for key, count in tally.items():
                instruments.add(metric, key, count)
            tally.clear()
        for metric, counted in (
            (_ROWS, self._rows),
            (_TOKENS, self._tokens),
            (_SHED, self._shed),
        ):
            for label, count in counted.items():
                instruments.add(metric, (label,), count)
            counted.clear()
        self._flush_counted()

    def _flush_counted(self) -> None:
        for (metric, labels), count in self._counted.items():
            self.instruments.add(metric, labels, count)
        self._counted.clear()

    def rate_limited(self, policy: str, tenant: str) -> None:
        """Count a request of `tenant` that the limit `policy` refused."""
        self.refused_tenants.add(tenant)
        self.instruments.add(LIMIT_DECISIONS, (policy, "refused"))

    def shed(self, reason: str) -> None:
        """Count a request that was refused before it was processed."""
        self._shed[reason] += 1

    def shadowed(self, policy: str) -> None:
        """Count a request that the limit `policy`, which is in shadow mode, would have refused."""
        self.instruments.add(LIMIT_DECISIONS, (policy, "shadow_refused"))

    def statistics(self, component: str, statistics: msgspec.Struct) -> None:
        """Publish the statistics of a component. Called about once a second."""
        self.instruments.publish(component, statistics)
