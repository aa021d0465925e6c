"""Declares every metric on the metrics page of a gateway machine.

The page shows one value of each series for all processes of the machine. The value is the sum of
the processes' values, unless a gauge declares another aggregation.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from prometheus_client.utils import floatToGoString

from wire.metric_declaration import (
    Aggregation,
    MetricDeclaration,
    MetricKind,
    MetricSection,
    unit_of,
)

SECONDS: Final = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of histogram buckets for durations."""
_INF: Final = "+Inf"
_WORKER: Final = ("worker",)
_ADMIN: Final = ("admin",)
_SHIPPER: Final = ("shipper",)
_BILLING: Final = ("billing",)
_EVERY: Final = ("worker", "admin", "shipper", "billing", "request_log", "batches")
_ENDPOINT: Final = ("region", "endpoint")


def _metric(
    name: str,
    text: str,
    *labels: str,
    kind: MetricKind,
    by: tuple[str, ...] = _WORKER,
    over: Aggregation = Aggregation.SUM,
) -> MetricDeclaration:
    return MetricDeclaration(
        name=f"sluicegate_{name}",
        kind=kind,
        help=text,
        labels=labels,
        unit=unit_of(name),
        aggregation=over,
        processes=by,
        buckets=SECONDS if kind is MetricKind.HISTOGRAM else (),
    )


_counter = partial(_metric, kind=MetricKind.COUNTER)
_gauge = partial(_metric, kind=MetricKind.GAUGE)
_histogram = partial(_metric, kind=MetricKind.HISTOGRAM)
_least = partial(_gauge, over=Aggregation.LEAST)
_most = partial(_gauge, over=Aggregation.MOST)

_REQUESTS: Final = (
    _counter(
        "requests_total",
        "Answered inference requests. `route` is the template of a route, or `grpc`. `model` is "
        "empty if no model was found. Responses replayed for an idempotency key are counted only "
        "in `idempotent_replays_total`. Requests without inference are not counted.",
        *("route", "model", "status"),
    ),
    _histogram(
        "request_duration_seconds",
        "Time from the head of a request to its response. On the fast path, the time starts when "
        "the whole request has arrived. `outcome`: `ok`, `client_error`, `rate_limited`, "
        "`overloaded`, `deadline`, `server_error`.",
        *("route", "model", "outcome"),
    ),
    _counter(
        "items_total",
        "Items by `source`: `memory_hit`, `redis_hit`, `stale`, `collapsed` (coalesced), "
        "`computed`, `refused` (invalid, or no capacity or time), `failed`.",
        *("model", "revision", "source"),
    ),
    _counter(
        "arm_items_total",
        "Items of models with a traffic split or a shadow revision. `arm` is the number of the "
        "revision that computed the result.",
        *("model", "arm", "source"),
    ),
    _counter(
        "rows_total",
        "Rows that backends computed.",
        "model",
    ),
    _counter(
        "tokens_total",
        "Tokens that backends computed.",
        "model",
    ),
    _histogram(
        "phase_duration_seconds",
        "Duration of a phase of a request. `phase`: `admission` (key, body, limits), `cache` "
        "(lookup in memory or Redis), `wait` (from the lookup until all missing items have an "
        "outcome; includes the lookup if Redis decided the limits), `dispatch` (a call to a "
        "backend). One in 64 repeated hits is measured and counts 64 times; a hit that its caller "
        "traces is always measured.",
        "phase",
    ),
    _counter(
        "failed_items_total",
        "Items that failed, by error code.",
        "code",
    ),
    _counter(
        "idempotency_claims_total",
        "Requests with an idempotency key. `outcome`: `owned` (the first request), `done` (the "
        "first response was replayed), `running` (the first request is not answered yet), `other` "
        "(a different request used the key).",
        "outcome",
    ),
    _counter(
        "idempotent_replays_total",
        "Responses replayed for a repeated idempotency key.",
    ),
    _counter(
        "idempotency_failures_total",
        "Idempotency keys that were not checked because Redis failed.",
    ),
)
_CACHE: Final = (
    _counter(
        "cache_lookups_total",
        "Keys looked up in a tier (`memory`, `redis`). `result`: `hit`, `miss`, `error`, "
        "`timeout` (Redis was late, so the key counted as a miss), `skipped` (the circuit breaker "
        "was open).",
        *("tier", "result"),
    ),
    _gauge(
        "cache_entries",
        "Entries in a tier; for Redis, its keys.",
        "tier",
    ),
    _gauge(
        "cache_bytes",
        "Bytes that a tier uses.",
        "tier",
    ),
    _gauge(
        "cache_capacity_bytes",
        "Bytes that a tier may use.",
        "tier",
    ),
    _counter(
        "cache_evictions_total",
        "Entries evicted to make room.",
        "tier",
    ),
    _counter(
        "cache_rejected_entries_total",
        "Entries not admitted to memory because they were used too rarely or are too large.",
        "tier",
    ),
    _counter(
        "cache_mismatches_total",
        "Values that belong to another key: a hash collision, or a fault.",
        "tier",
    ),
    _counter(
        "cache_corrupt_entries_total",
        "Values that could not be decoded.",
        "tier",
    ),
    _counter(
        "cache_reads_total",
        "Round trips for lookups; one round trip looks up many keys.",
        "tier",
    ),
    _counter(
        "cache_claimed_lookups_total",
        "Misses of keys that another worker was computing.",
        "tier",
    ),
    _counter(
        "cache_writes_total",
        "Entries stored. `result`: `written`, `error`, `dropped` (the queue was full).",
        *("tier", "result"),
    ),
    _gauge(
        "cache_queued_writes",
        "Entries that wait to be written.",
        "tier",
    ),
    _counter(
        "coalescing_items_total",
        "Cache misses by `role`: `led` (this request started the computation, or waited for "
        "another worker's), `joined` (this worker was already computing an equal item). An item "
        "whose wait failed is counted again.",
        "role",
    ),
    _gauge(
        "coalescing_in_flight",
        "Distinct items that are being computed.",
    ),
    _counter(
        "stale_items_total",
        "Items answered with a stale result. `reason`: `refresh_due`, `error` (no backend).",
        "reason",
    ),
    _counter(
        "stale_refreshes_total",
        "Stale items due for a refresh. `result`: `started`, `skipped` (too many refreshes were "
        "under way).",
        "result",
    ),
    _gauge(
        "stale_refreshes_in_flight",
        "Refreshes under way.",
    ),
)
_ROUTING: Final = (
    _least("endpoint_up", "Whether the endpoint is ready in the view of every worker.", *_ENDPOINT),
    _least("endpoint_share",
           "Fraction of its speed that is used; below 1 during slow start.", *_ENDPOINT),
    _most("endpoint_predicted_finish_seconds",
          "Predicted time until an item sent now has a result.", *_ENDPOINT),
    _most("endpoint_fastest_finish_seconds",
          "Lowest predicted time of all usable endpoints (ready, not drained, not ejected) that "
          "serve a model of this endpoint.", *_ENDPOINT),
    _gauge("endpoint_in_flight_items", "Items that wait for the endpoint.", *_ENDPOINT),
    _gauge("endpoint_limit_items",
           "Items in flight above which sheddable requests are refused.", *_ENDPOINT),
    _most("endpoint_drained", "Whether it is drained.", *_ENDPOINT),
    _most("endpoint_ejected", "Whether a worker has ejected it.", *_ENDPOINT),
    _counter("endpoint_calls_total",
             "Ended calls. `outcome`: `ok`, `refused`, `failed`, `given_up` (the deadline passed, "
             "or all callers left).", *_ENDPOINT, "outcome"),
    _counter("endpoint_failures_total",
             "Refused or failed calls. `cause`: `refused`, `unreachable`, `cut` (the connection "
             "closed), `timed_out`, `unexpected` (a fault of the gateway).", *_ENDPOINT, "cause"),
    _counter("endpoint_ejections_total", "Ejections by all workers.", *_ENDPOINT),
    _counter("hedges_total",
             "Items sent to a second backend because the first one, in this region, was late.",
             "region"),
    _counter("retries_total", "Items retried after they failed in this region.", "region"),
    _counter("retries_denied_total", "Retries that the retry budget denied."),
    _counter("spilled_items_total",
             "Items first sent to another region than the preferred one.",
             *("from_region", "to_region")),
    _counter("dispatched_items_total",
             "Ended items that were sent to backends. `outcome`: `computed`, `failed`.", "outcome"),
    _gauge("discovery_names", "DNS names of backends, summed over workers."),
    _gauge("discovery_failing_names", "DNS names whose last lookup failed."),
    _gauge("discovery_addresses", "Resolved addresses in use."),
    _counter("discovery_failures_total", "Failed DNS lookups."),
)  # fmt: skip
_LIMITS: Final = (
    _counter("requests_shed_total",
             "Requests that an overloaded worker refused before processing them. `reason`: "
             "`worker_delay` (the event loop was late), `deadline` (the deadline could not be "
             "met).", "reason"),
    _counter("limit_decisions_total",
             "Limit decisions, one for each request. `decision`: `allowed` (`policy` is empty), "
             "`refused` (by the limit `policy`), `shadow_refused` (by `policy` in shadow mode, "
             "which refuses nothing).", *("policy", "decision")),
    _counter("limit_admissions_total",
             "Admitted requests. `source`: `lease`, `redis`, `local_share` (Redis was down or "
             "late).", "source"),
    _counter("limit_local_decisions_total",
             "Requests decided by this worker's local share of limits, without Redis and without "
             "a lease."),
    _counter("limit_refusals_total",
             "Requests that limits refused, including limits on computed rows and tokens."),
    _counter("limit_shadow_refusals_total",
             "Charges that limits in shadow mode would have refused."),
    _gauge("limit_leases", "Leases of bucket units that workers hold."),
    _gauge("limit_leased_units", "Units that workers lease."),
    _gauge("limit_reserved_units", "Units reserved for admitted calls to backends."),
    _counter("limit_lapsed_units_total", "Leased units that expired unused."),
    _counter("limit_redis_calls_total",
             "Limiter calls to Redis. `result`: `sent` (all calls), `failed`.", "result"),
    _gauge("region_limit_regions", "Regions that share limits, summed over workers."),
    _least("region_limit_share_ratio",
           "This region's share of buckets without a share of their own."),
    _least("region_limit_lease_seconds",
           "Time until the region's shares expire; 0 if the region cannot reach the ledger."),
    _counter("budget_thresholds_total", "Budget thresholds that tenants reached.", by=_BILLING),
)  # fmt: skip
_DEPENDENCIES: Final = (
    _least("dependency_up",
           "Whether every worker reaches `cache_redis` and `state_redis`, and the operators' "
           "listener reaches the `ledger`.", "dependency", by=("worker", "admin")),
    _most("breaker_open",
          "Whether the circuit breaker of `cache_redis` or `state_redis` is open or half-open in "
          "any worker.", "dependency"),
    _counter("breaker_openings_total", "How often a circuit breaker opened.", "dependency"),
    _most("clock_skew_seconds",
          "Lower bound of the absolute difference between the machine's clock and the clock of "
          "`state_redis` or of the PostgreSQL `ledger`.", "dependency"),
)  # fmt: skip
_EVENTS: Final = (
    _counter("events_published_total", "Usage events written to the log."),
    _counter("events_refused_total",
             "Usage events refused because the log was full; their requests failed with status "
             "503."),
    _gauge("event_log_segments", "Open segments of event logs."),
    _least("event_log_writable", "Whether every worker can write its log."),
    _counter("event_log_sync_failures_total", "Failed syncs of event logs to disk."),
    _most("event_log_unsynced_seconds",
          "Age of the oldest usage event that is not synced to disk; a power cut loses unsynced "
          "events."),
    _gauge("events_unshipped_bytes",
           "Bytes of event logs that are not yet in the stream.", by=_SHIPPER),
    _most("shipper_lag_seconds",
          "Age of the oldest events that are not in the stream; 0 if all are.", by=_SHIPPER),
    _gauge("shipper_logs", "Event logs that the shipper reads.", by=_SHIPPER),
    _counter("shipped_events_total", "Usage events added to the stream.", by=_SHIPPER),
    _counter("shipped_blocks_total", "Blocks of usage events added to the stream.", by=_SHIPPER),
    _counter("shipper_rewinds_total",
             "How often a log was shipped again because the stream or the ledger had lost events.",
             by=_SHIPPER),
    _gauge("shipper_unreadable_logs", "Files that cannot be read as event logs.", by=_SHIPPER),
    _gauge("event_log_kept_segments",
           "Shipped segments kept in case the ledger is lost.", by=_SHIPPER),
    _gauge("event_log_kept_bytes", "Bytes of the kept segments.", by=_SHIPPER),
    _counter("event_log_deleted_segments_total",
             "Deleted segments that had been shipped.", by=_SHIPPER),
    _gauge("stream_blocks",
           "Blocks in the stream that a consumer has not acknowledged.", by=_SHIPPER),
    _most("stream_full", "Whether the stream is full and accepts no more blocks.", by=_SHIPPER),
    _gauge("stream_lag_events",
           "Estimated events in the stream that a `consumer` (`billing`, `request_log`) has not "
           "acknowledged.", "consumer", by=_SHIPPER),
    _counter("stream_dropped_blocks_total",
             "Blocks deleted before the request log read them.", by=_SHIPPER),
    _counter("events_dropped_total",
             "Lost events. `stream`: `usage` (lost in a power cut or machine crash), "
             "`request_log` (not written because the disk was full).", "stream",
             by=("shipper", "request_log")),
    _counter("billed_events_total",
             "Events read from streams. `result`: `counted`, `duplicate`, `dead` (a dead letter), "
             "`lost`.", "result", by=_BILLING),
    _most("billing_lag_seconds",
          "Age of the oldest event when the last blocks were committed. `stream` is the number of "
          "a region's stream.", "stream", by=_BILLING),
    _counter("usage_rollup_rows_total", "Usage events that the rollup has summed.", by=_BILLING),
    _counter("request_log_lines_total", "Lines written to the request log.", by=("request_log",)),
    _most("consecutive_failures",
          "Consecutive failures of a `part` (`shipper`, `billing`, `request_log`, `rollup`, "
          "`budgets`); 0 after a success.", "part", by=("shipper", "billing", "request_log")),
    _most("dead_letters",
          "Dead letters in the ledger: stream entries that are not valid usage events.", "stream",
          by=_ADMIN),
)  # fmt: skip
_BATCHES: Final = (
    _gauge("batches", "Batch jobs by `state`: `running`.", "state", by=("batches",)),
    _counter("batch_changes_total",
             "Batch jobs by `change`: `begun`, `ended`, `lost` (taken over by another process).",
             "change", by=("batches",)),
    _counter("batch_files_removed_total", "Files deleted because they expired.", by=("batches",)),
)  # fmt: skip
_PROCESSES: Final = (
    _histogram("event_loop_lag_seconds",
               "Delay of an event-loop timer, measured ten times a second. Roles other than "
               "`gateway` and `admin` run at a low priority.", "role", by=_EVERY),
    _histogram("event_loop_held_seconds",
               "How long code of this process held the event loop, at least: the delay without the "
               "time that the loop's thread waited for a core.", "role", by=_EVERY),
    _gauge("process_resident_memory_bytes", "Resident memory by process role.", "role", by=_EVERY),
    _counter("process_cpu_seconds_total", "CPU time by process role.", "role", by=_EVERY),
    _counter("process_restarts_total",
             "Processes restarted by the supervisor. `reason`: `ended` (exited), `silent` (no "
             "heartbeat), `memory` (above its limit).", *("role", "reason"), by=("supervisor",)),
    _gauge("tasks", "Tasks on the workers' event loops."),
    _least("data_disk_free_bytes", "Free bytes on the data directory's disk.", by=_ADMIN),
    _least("config_generation",
           "Lowest generation of the configuration document that a worker uses."),
    _counter("config_reloads_total",
             "Configuration documents that workers applied (`ok`) or could not apply (`failed`).",
             "result"),
    _most("build_info", "Always 1; the label is the version.", "version", by=_ADMIN),
    _counter("trace_spans_total",
             "Trace spans. `outcome`: `exported`, `failed`, `dropped` (the queue was full).",
             "outcome"),
)  # fmt: skip
_LISTENERS: Final = (
    _gauge("open_connections",
           "Open connections by `listener`: `customers`, `operators`.", "listener",
           by=("worker", "admin")),
    _counter("refused_connections_total",
             "Connections that a listener refused or could not establish. `reason`: `connections` "
             "(too many), `address` (too many from one address), `tls`, `proxy_header`, `broken`, "
             "`frames` (invalid gRPC frames).", *("listener", "reason"), by=("worker", "admin")),
    _counter("closed_readers_total",
             "Connections that a listener closed because the peer read too slowly. `reason`: "
             "`slow` (below the minimum rate), `wanted` (other requests waited for the memory), "
             "`full` (unsent responses exceeded their limit).", *("listener", "reason"),
             by=("worker", "admin")),
    _gauge("unsent_answer_bytes", "Bytes of responses that workers are encoding or have not sent."),
    _least("tls_certificate_expiry_timestamp_seconds",
           "Expiry time of a listener's certificate, in seconds since 1970.", "listener",
           by=("worker", "admin")),
    _most("tls_certificate_unusable",
          "Whether a listener's certificate files are unusable; the listener keeps the old "
          "certificate.", "listener", by=("worker", "admin")),
)  # fmt: skip

GATEWAY_METRICS: Final = (
    MetricSection(title="Requests and items", metrics=_REQUESTS),
    MetricSection(title="Cache and coalescing", metrics=_CACHE),
    MetricSection(title="Regions and backends", metrics=_ROUTING),
    MetricSection(title="Limits", metrics=_LIMITS),
    MetricSection(title="Dependencies", metrics=_DEPENDENCIES),
    MetricSection(title="Usage events, stream and billing", metrics=_EVENTS),
    MetricSection(title="Batches", metrics=_BATCHES),
    MetricSection(title="Processes", metrics=_PROCESSES),
    MetricSection(title="Listeners", metrics=_LISTENERS),
)


def gateway_metrics() -> dict[str, MetricDeclaration]:
    """Return every metric of a gateway machine by its name."""
    return {metric.name: metric for section in GATEWAY_METRICS for metric in section.metrics}


class DeclaredSeries:
    """Tells which series in metric files are declared.

    The files may also contain series that only an older version of the gateway declared.
    """

    def __init__(self) -> None:
        go_text: Callable[[float], str] = floatToGoString  # untyped
        self._labels = {
            metric.family: (frozenset(metric.labels), {*map(go_text, metric.buckets), _INF})
            for metric in gateway_metrics().values()
        }

    def has(self, key: str) -> bool:
        """Return whether `key`, in the metrics library's format, belongs to a declared series."""
        family, _, labels, _ = msgspec.json.decode(key)
        declared, bounds = self._labels.get(family, (None, ()))
        bound = labels.pop("le", _INF)
        return declared == labels.keys() and bound in bounds
