"""Maps the statistics of components to metrics.

A component's `statistics()` returns a struct. Each field is a number, the state of a circuit
breaker, or a mapping from labels to numbers. In `labels`, `$component` stands for the component's
name, and `$number` for the number at the end of this name.
"""

import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from gateway.telemetry.instruments import Instruments

_NAME: Final = re.compile(r"(.+?)(?:_(\d+))?")


class StatisticsMetric(NamedTuple):
    """Maps a field of the statistics to a metric and its labels.

    `outer.inner` names a nested field.
    """

    field: str
    metric: str
    labels: tuple[str, ...] = ()


def _of(*fields: tuple[str, ...]) -> tuple[StatisticsMetric, ...]:
    return tuple(StatisticsMetric(field, metric, labels) for field, metric, *labels in fields)  # type: ignore[arg-type]


_FAILURES: Final = ("failures", "consecutive_failures", "$component")
STATISTICS_METRICS: Final[Mapping[str, tuple[StatisticsMetric, ...]]] = {
    "cache": _of(
        ("memory.entries", "cache_entries", "memory"),
        ("memory.used_bytes", "cache_bytes", "memory"),
        ("memory.capacity_bytes", "cache_capacity_bytes", "memory"),
        ("memory.hits", "cache_lookups_total", "memory", "hit"),
        ("memory.misses", "cache_lookups_total", "memory", "miss"),
        ("memory.mismatches", "cache_mismatches_total", "memory"),
        ("memory.evicted", "cache_evictions_total", "memory"),
        ("memory.refused", "cache_rejected_entries_total", "memory"),
        ("remote.hits", "cache_lookups_total", "redis", "hit"),
        ("remote.misses", "cache_lookups_total", "redis", "miss"),
        ("remote.read_errors", "cache_lookups_total", "redis", "error"),
        ("remote.timeouts", "cache_lookups_total", "redis", "timeout"),
        ("remote.skipped", "cache_lookups_total", "redis", "skipped"),
        ("remote.reads", "cache_reads_total", "redis"),
        ("remote.mismatches", "cache_mismatches_total", "redis"),
        ("remote.corrupt", "cache_corrupt_entries_total", "redis"),
        ("remote.claimed", "cache_claimed_lookups_total", "redis"),
        ("remote.written", "cache_writes_total", "redis", "written"),
        ("remote.write_errors", "cache_writes_total", "redis", "error"),
        ("remote.dropped", "cache_writes_total", "redis", "dropped"),
        ("remote.queued", "cache_queued_writes", "redis"),
        ("remote.breaker", "breaker_open", "cache_redis"),
        ("remote.breaker_opened", "breaker_openings_total", "cache_redis"),
    ),
    "coalescing": _of(
        ("in_flight", "coalescing_in_flight"),
        ("led", "coalescing_items_total", "led"),
        ("joined", "coalescing_items_total", "joined"),
    ),
    "stale": _of(
        ("served", "stale_items_total", "refresh_due"),
        ("served_on_error", "stale_items_total", "error"),
        ("refreshing", "stale_refreshes_in_flight"),
        ("refreshes", "stale_refreshes_total", "started"),
        ("refreshes_skipped", "stale_refreshes_total", "skipped"),
    ),
    "limits": _of(
        ("admitted_by_lease", "limit_decisions_total", "", "allowed"),
        ("admitted_by_redis", "limit_decisions_total", "", "allowed"),
        ("admitted_by_share", "limit_decisions_total", "", "allowed"),
        ("admitted_by_lease", "limit_admissions_total", "lease"),
        ("admitted_by_redis", "limit_admissions_total", "redis"),
        ("admitted_by_share", "limit_admissions_total", "local_share"),
        ("local_decisions", "limit_local_decisions_total"),
        ("refused", "limit_refusals_total"),
        ("shadowed", "limit_shadow_refusals_total"),
        ("asked", "limit_redis_calls_total", "sent"),
        ("failures", "limit_redis_calls_total", "failed"),
        ("leases", "limit_leases"),
        ("leased", "limit_leased_units"),
        ("reserved", "limit_reserved_units"),
        ("lapsed", "limit_lapsed_units_total"),
        ("breaker", "breaker_open", "state_redis"),
        ("breaker_opened", "breaker_openings_total", "state_redis"),
    ),
    "shares": _of(
        ("regions", "region_limit_regions"),
        ("rest", "region_limit_share_ratio"),
        ("lease", "region_limit_lease_seconds"),
    ),
    "idempotency": _of(
        ("owned", "idempotency_claims_total", "owned"),
        ("done", "idempotency_claims_total", "done"),
        ("done", "idempotent_replays_total"),
        ("running", "idempotency_claims_total", "running"),
        ("other", "idempotency_claims_total", "other"),
        ("failures", "idempotency_failures_total"),
    ),
    "dispatch": _of(
        ("denied", "retries_denied_total"),
        ("computed", "dispatched_items_total", "computed"),
        ("failed", "dispatched_items_total", "failed"),
        ("failed_by_code", "failed_items_total"),
    ),
    "endpoints": _of(
        ("calls", "endpoint_calls_total"),
        ("failures", "endpoint_failures_total"),
        ("hedges", "hedges_total"),
        ("retries", "retries_total"),
        ("spilled", "spilled_items_total"),
    ),
    "discovery": _of(
        ("names", "discovery_names"),
        ("failing", "discovery_failing_names"),
        ("addresses", "discovery_addresses"),
        ("failures", "discovery_failures_total"),
    ),
    "events": _of(
        ("published", "events_published_total"),
        ("refused", "events_refused_total"),
        ("segments", "event_log_segments"),
        ("writable", "event_log_writable"),
        ("sync_failures", "event_log_sync_failures_total"),
        ("unsynced", "event_log_unsynced_seconds"),
    ),
    "tracing": _of(
        ("exported", "trace_spans_total", "exported"),
        ("failed", "trace_spans_total", "failed"),
        ("dropped", "trace_spans_total", "dropped"),
    ),
    "answers": _of(("unsent_bytes", "unsent_answer_bytes")),
    "worker": _of(
        ("tasks", "tasks"),
        ("generation", "config_generation"),
        ("reloads", "config_reloads_total", "ok"),
        ("failed_reloads", "config_reloads_total", "failed"),
        ("state_redis", "dependency_up", "state_redis"),
        ("cache_redis", "dependency_up", "cache_redis"),
    ),
    "clock": _of(
        ("state_redis", "clock_skew_seconds", "state_redis"),
        ("ledger", "clock_skew_seconds", "ledger"),
    ),
    "shipper": _of(
        ("logs", "shipper_logs"),
        ("events", "shipped_events_total"),
        ("blocks", "shipped_blocks_total"),
        ("rewinds", "shipper_rewinds_total"),
        ("lost", "events_dropped_total", "usage"),
        ("dropped", "stream_dropped_blocks_total"),
        ("unreadable", "shipper_unreadable_logs"),
        ("segments_deleted", "event_log_deleted_segments_total"),
        ("segments_kept", "event_log_kept_segments"),
        ("kept_bytes", "event_log_kept_bytes"),
        ("unconsumed", "stream_blocks"),
        ("lagging", "stream_lag_events"),
        ("full", "stream_full"),
        ("unshipped_bytes", "events_unshipped_bytes"),
        ("lag", "shipper_lag_seconds"),
        _FAILURES,
    ),
    "billing": _of(
        ("events", "billed_events_total", "counted"),
        ("duplicates", "billed_events_total", "duplicate"),
        ("dead", "billed_events_total", "dead"),
        ("lost", "billed_events_total", "lost"),
        ("lag", "billing_lag_seconds", "$number"),
        _FAILURES,
    ),
    "rollup": _of(("rows", "usage_rollup_rows_total"), _FAILURES),
    "budgets": _of(("reached", "budget_thresholds_total"), _FAILURES),
    "request_log": _of(
        ("lines", "request_log_lines_total"),
        ("dropped", "events_dropped_total", "request_log"),
        _FAILURES,
    ),
    "batches": _of(
        ("running", "batches", "running"),
        ("begun", "batch_changes_total", "begun"),
        ("ended", "batch_changes_total", "ended"),
        ("lost", "batch_changes_total", "lost"),
        ("files_removed", "batch_files_removed_total"),
    ),
}


class StatisticsPublisher:
    """Publishes the statistics of components as metrics."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments

    def publish(self, component: str, statistics: msgspec.Struct) -> None:
        """Publish a component's statistics. The name may end in a number: `billing_1`."""
        name, number = _split(component)
        for field_metric in STATISTICS_METRICS[name]:
            given = {"$component": component, "$number": number}
            labels = tuple(given.get(label, label) for label in field_metric.labels)
            for value_labels, value in _values(attrgetter(field_metric.field)(statistics)):
                source = f"{component}.{field_metric.field}"
                self._instruments.record(
                    field_metric.metric, value, (*labels, *value_labels), source=source
                )


def _split(component: str) -> tuple[str, str]:
    found = _NAME.fullmatch(component)
    return (found[1], found[2] or "0") if found else (component, "0")


def _values(value: Any) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each number in a field with the labels from the keys of the field's mapping."""
    if isinstance(value, Mapping):
        for labels, one in value.items():
            yield (labels,) if isinstance(labels, str) else labels, float(one)
    elif isinstance(value, str):
        yield (), float(value != "closed")
    else:
        yield (), float(value)
