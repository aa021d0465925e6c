"""Declares every metric on the metrics page of a gateway machine.

Values of all processes of the machine are added up, or as the declaration of a gauge says.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from prometheus_client.utils import floatToGoString

from backends.metric_declaration import (
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
"""Upper bounds of the buckets of durations."""
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
        "Requests answered. `route` is the template of an inference route or `grpc`, `model` empty "
        "where none was found. Replays to an idempotency key are in `idempotent_replays_total` "
        "alone, requests of routes without inference nowhere.",
        *("route", "model", "status"),
    ),
    _histogram(
        "request_duration_seconds",
        "Time from a request's head to its answer; on the fast path from the moment when all of it "
        "is there. `outcome`: `ok`, `client_error`, `rate_limited`, `overloaded`, `deadline`, "
        "`server_error`.",
        *("route", "model", "outcome"),
    ),
    _counter(
        "items_total",
        "Items answered. `source`: `memory_hit`, `redis_hit`, `stale`, `collapsed`, `computed`; "
        "`refused` (what was sent cannot be answered, or there was no room or time); `failed`.",
        *("model", "revision", "source"),
    ),
    _counter(
        "arm_items_total",
        "Items where revisions share them, or one has a shadow; `arm` is the number of the "
        "revision that answered.",
        *("model", "arm", "source"),
    ),
    _counter("rows_total", "Rows that backends computed.", "model"),
    _counter("tokens_total", "Tokens that backends computed.", "model"),
    _histogram(
        "phase_duration_seconds",
        "Time of a phase of requests. `phase`: `admission` (key, body, limits), `cache` (look-up "
        "in memory, or in Redis), `wait` (from the look-up until every missing item has its "
        "outcome; with the look-up where the limits were asked of Redis), `dispatch` (a call of a "
        "backend). Of repeated hits one in 64 is measured and counts 64 times; those that "
        "their callers sampled are all measured.",
        "phase",
    ),
    _counter("failed_items_total", "Items that no backend answered, by the error's code.", "code"),
    _counter(
        "idempotency_claims_total",
        "Requests with an idempotency key. `outcome`: `owned` (the first), `done` (its answer was "
        "replayed), `running` (it is not answered yet), `other` (another request has the key).",
        "outcome",
    ),
    _counter("idempotent_replays_total", "Answers replayed to a repeated idempotency key."),
    _counter("idempotency_failures_total", "Claims of idempotency keys that Redis did not answer."),
)
_CACHE: Final = (
    _counter(
        "cache_lookups_total",
        "Keys looked up in a tier (`memory`, `redis`). `result`: `hit`, `miss`, `error`, `timeout` "
        "(reads that ended as a miss because Redis was late), `skipped` (the breaker was open).",
        *("tier", "result"),
    ),
    _gauge("cache_entries", "Entries in a tier; in Redis: its keys.", "tier"),
    _gauge("cache_bytes", "Bytes that a tier uses.", "tier"),
    _gauge("cache_capacity_bytes", "Bytes that a tier may use.", "tier"),
    _counter("cache_evictions_total", "Entries evicted to make room.", "tier"),
    _counter(
        "cache_rejected_entries_total",
        "Entries not kept in memory: not frequent enough, or too large.",
        "tier",
    ),
    _counter(
        "cache_mismatches_total",
        "Values found at an address that belong to another key: a collision, or a fault.",
        "tier",
    ),
    _counter("cache_corrupt_entries_total", "Values that could not be decoded.", "tier"),
    _counter("cache_reads_total", "Round trips of look-ups; many keys share one.", "tier"),
    _counter("cache_claimed_lookups_total", "Misses that another worker was computing.", "tier"),
    _counter(
        "cache_writes_total",
        "Entries stored. `result`: `written`, `error`, `dropped` (the queue was full).",
        *("tier", "result"),
    ),
    _gauge("cache_queued_writes", "Entries that wait to be written.", "tier"),
    _counter(
        "coalescing_items_total",
        "Missing items. `role`: `led` (it was computed here, or by another worker that had begun), "
        "`joined` (equal work was under way here). Who waits in vain may lead or join anew.",
        "role",
    ),
    _gauge("coalescing_in_flight", "Different items that are being computed."),
    _counter(
        "stale_items_total",
        "Items answered with a stale answer. `reason`: `refresh_due`, `error` (no backend).",
        "reason",
    ),
    _counter(
        "stale_refreshes_total",
        "Items to be refreshed. `result`: `started`, `skipped` (as many as allowed were).",
        "result",
    ),
    _gauge("stale_refreshes_in_flight", "Refreshes under way."),
)
_ROUTING: Final = (
    _least("endpoint_up", "Whether every worker finds the endpoint ready.", *_ENDPOINT),
    _least("endpoint_share", "Share of its speed that is used: below 1 during its slow start.",
           *_ENDPOINT),
    _most("endpoint_predicted_finish_seconds", "Predicted time until an item sent now is answered.",
          *_ENDPOINT),
    _most("endpoint_fastest_finish_seconds", "The least predicted time of the endpoints that serve "
          "a model of this one and are ready, not drained and not ejected.", *_ENDPOINT),
    _gauge("endpoint_in_flight_items", "Items that wait for the endpoint.", *_ENDPOINT),
    _gauge("endpoint_limit_items", "Items in flight above which sheddable work is refused.",
           *_ENDPOINT),
    _most("endpoint_drained", "Whether it is drained.", *_ENDPOINT),
    _most("endpoint_ejected", "Whether a worker has ejected it.", *_ENDPOINT),
    _counter(
        "endpoint_calls_total",
        "Calls that ended. `outcome`: `ok`, `refused`, `failed`, `given_up` (deadline, or nobody "
        "waits any more).",
        *_ENDPOINT, "outcome",
    ),
    _counter(
        "endpoint_failures_total",
        "Calls that were refused or failed. `cause`: `refused`, `unreachable`, `cut`, `timed_out`, "
        "`unexpected` (a fault of the gateway).",
        *_ENDPOINT, "cause",
    ),
    _counter("endpoint_ejections_total", "Ejections, added up over the workers.", *_ENDPOINT),
    _counter("hedges_total", "Items tried at a second backend, because the first, in this region, "
             "was late.", "region"),
    _counter("retries_total", "Items tried again after this region failed them.", "region"),
    _counter("retries_denied_total", "Retries that the retry budget did not allow."),
    _counter(
        "spilled_items_total",
        "Items sent to another region than the preferred one, first tries only.",
        *("from_region", "to_region"),
    ),
    _counter("dispatched_items_total", "Items sent to backends that ended. `outcome`: `computed`, "
             "`failed`.", "outcome"),
    _gauge("discovery_names", "DNS names of backends, added up over the workers."),
    _gauge("discovery_failing_names", "DNS names whose last look-up failed."),
    _gauge("discovery_addresses", "Addresses that are in use."),
    _counter("discovery_failures_total", "Look-ups of names that failed."),
)  # fmt: skip
_LIMITS: Final = (
    _counter(
        "requests_shed_total",
        "Requests refused by a worker without processor time, before any work was done for them. "
        "`reason`: `worker_delay` (more waited than it can do), `deadline` (it could not be met).",
        "reason",
    ),
    _counter(
        "limit_decisions_total",
        "Decisions of limits, once for each request. `decision`: `allowed` (`policy` is empty: all "
        "limits did), `refused` (by the limit named), `shadow_refused` (it only watches).",
        *("policy", "decision"),
    ),
    _counter("limit_admissions_total", "Requests admitted. `source`: `lease`, `redis`, "
             "`local_share` (Redis was down or late).", "source"),
    _counter("limit_local_decisions_total", "Requests decided by the local share of the limits, "
             "without Redis and without a lease."),
    _counter("limit_refusals_total", "Requests that the limits refused, before and after their "
             "admission."),
    _counter("limit_shadow_refusals_total", "Charges that limits which only watch would have "
             "refused."),
    _gauge("limit_leases", "Leases on buckets that workers hold."),
    _gauge("limit_leased_units", "Units on lease."),
    _gauge("limit_reserved_units", "Units reserved for work under way."),
    _counter("limit_lapsed_units_total", "Units of leases that expired unused."),
    _counter("limit_redis_calls_total", "Calls of the limiter to Redis. `result`: `sent` (all of "
             "them), `failed`.", "result"),
    _gauge("region_limit_regions", "Regions that share the limits, added up over the workers."),
    _least("region_limit_share_ratio", "This region's share of buckets without one of their own."),
    _least("region_limit_lease_seconds", "Time until the region's shares expire; 0: it is cut off "
           "from the store."),
    _counter("budget_thresholds_total", "Thresholds of tenants' budgets that were reached.",
             by=_BILLING),
)  # fmt: skip
_DEPENDENCIES: Final = (
    _least("dependency_up", "Whether `cache_redis`, `state_redis` and the `ledger` answer every "
           "worker, or the operators' listener.", "dependency", by=("worker", "admin")),
    _most("breaker_open", "Whether the circuit breaker of `cache_redis` or `state_redis` is not "
          "closed in some worker.", "dependency"),
    _counter("breaker_openings_total", "Times that a breaker opened.", "dependency"),
    _most("clock_skew_seconds", "Least difference between the machine's clock and that of "
          "`state_redis` or of the `ledger` in PostgreSQL, in either direction.", "dependency"),
)  # fmt: skip
_EVENTS: Final = (
    _counter("events_published_total", "Usage events written to the log."),
    _counter("events_refused_total", "Usage events refused for lack of room: their requests were "
             "answered 503."),
    _gauge("event_log_segments", "Segments that workers write to or have not closed."),
    _least("event_log_writable", "Whether every worker can write its log."),
    _counter("event_log_sync_failures_total", "Syncs of an event log to the disk that failed."),
    _most("event_log_unsynced_seconds", "How long the oldest usage event has waited for a sync: a "
          "power cut loses the events that wait."),
    _gauge("events_unshipped_bytes", "Bytes of event logs that are not in the stream yet.",
           by=_SHIPPER),
    _most("shipper_lag_seconds", "Age of the oldest part of a log that is not in the stream; 0 "
          "where there is none.", by=_SHIPPER),
    _gauge("shipper_logs", "Event logs that are shipped.", by=_SHIPPER),
    _counter("shipped_events_total", "Usage events put into the stream.", by=_SHIPPER),
    _counter("shipped_blocks_total", "Blocks of events put into the stream.", by=_SHIPPER),
    _counter("shipper_rewinds_total", "Logs shipped again, because the stream or the ledger had "
             "lost events.", by=_SHIPPER),
    _gauge("shipper_unreadable_logs", "Files that are no event log.", by=_SHIPPER),
    _gauge("event_log_kept_segments", "Shipped segments kept for a lost ledger.", by=_SHIPPER),
    _gauge("event_log_kept_bytes", "Bytes of these.", by=_SHIPPER),
    _counter("event_log_deleted_segments_total", "Shipped segments deleted.", by=_SHIPPER),
    _gauge("stream_blocks", "Blocks in the stream that some consumer has not acknowledged.",
           by=_SHIPPER),
    _most("stream_full", "Whether the stream takes no more blocks.", by=_SHIPPER),
    _gauge("stream_lag_events", "Events in the stream that a consumer (`billing`, `request_log`) "
           "has not acknowledged: its blocks times the average events of a block.", "consumer",
           by=_SHIPPER),
    _counter("stream_dropped_blocks_total", "Blocks deleted before the request log had read them.",
             by=_SHIPPER),
    _counter("events_dropped_total", "Events lost. `stream`: `usage` (destroyed by a power cut or "
             "a crash of the machine), `request_log` (not written for lack of room).", "stream",
             by=("shipper", "request_log")),
    _counter("billed_events_total", "Events read from streams. `result`: `counted`, `duplicate`, "
             "`dead` (a dead letter), `lost`.", "result", by=_BILLING),
    _most("billing_lag_seconds", "Age of the oldest event when the last blocks were committed; "
          "`stream` numbers the regions' streams.", "stream", by=_BILLING),
    _counter("usage_rollup_rows_total", "Rows of usage added up by day.", by=_BILLING),
    _counter("request_log_lines_total", "Lines written to the request log.", by=("request_log",)),
    _most("consecutive_failures", "Failures in a row of a part (`shipper`, `billing`, "
          "`request_log`, `rollup`, `budgets`); 0 once it succeeds.", "part",
          by=("shipper", "billing", "request_log")),
    _most("dead_letters", "Entries of a stream in the ledger that are no usage events.", "stream",
          by=_ADMIN),
)  # fmt: skip
_BATCHES: Final = (
    _gauge("batches", "Batches by `state`: `running`.", "state", by=("batches",)),
    _counter("batch_changes_total", "Batches that were `begun`, `ended`, or `lost` to another "
             "process.", "change", by=("batches",)),
    _counter("batch_files_removed_total", "Files removed because they were old.", by=("batches",)),
)  # fmt: skip
_PROCESSES: Final = (
    _histogram("event_loop_lag_seconds", "How late a timer of the event loop was, twice a second, "
               "by role of process. All but `gateway` and `admin` run at a low priority.", "role",
               by=_EVERY),
    _gauge("process_resident_memory_bytes", "Resident memory, by role of process.", "role",
           by=_EVERY),
    _counter("process_cpu_seconds_total", "Processor time, by role of process.", "role", by=_EVERY),
    _counter("process_restarts_total", "Processes that the supervisor started again. `reason`: "
             "`ended` by itself, `silent`, too much `memory`.", *("role", "reason"),
             by=("supervisor",)),
    _gauge("tasks", "Tasks of the workers' event loops."),
    _least("data_disk_free_bytes", "Bytes free where the data directory is.", by=_ADMIN),
    _least("config_generation", "Generation of the document that the slowest worker has."),
    _counter("config_reloads_total", "Documents that were taken (`ok`) or not (`failed`), added up "
             "over the workers.", "result"),
    _most("build_info", "Is 1; its label is the version.", "version", by=_ADMIN),
    _counter("trace_spans_total", "Spans. `outcome`: `exported`, `failed`, `dropped` (the queue "
             "was full).", "outcome"),
)  # fmt: skip
_LISTENERS: Final = (
    _gauge("open_connections", "Connections of a listener: `customers`, `operators`.", "listener",
           by=("worker", "admin")),
    _counter("refused_connections_total", "Connections that a listener refused or did not "
             "establish. `reason`: `connections` (too many), `address` (too many of one), `tls`, "
             "`proxy_header`, `broken`, `frames` (of gRPC).", *("listener", "reason"),
             by=("worker", "admin")),
    _counter("closed_readers_total", "Connections that a listener closed because the peer read too "
             "slowly. `reason`: `slow` (less than the least rate), `wanted` (others waited for the "
             "memory), `full` (unsent answers exceeded their bound).",
             *("listener", "reason"), by=("worker", "admin")),
    _gauge("unsent_answer_bytes", "Bytes of answers that workers encode or have not sent yet."),
    _least("tls_certificate_expiry_timestamp_seconds", "When the certificate of a listener "
           "expires, in seconds since 1970.", "listener", by=("worker", "admin")),
    _most("tls_certificate_unusable", "Whether the files of a listener's certificate cannot be "
          "used; it keeps the old one.", "listener", by=("worker", "admin")),
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
    """Tells series of the declared metrics from those that former versions left in files."""

    def __init__(self) -> None:
        go_text: Callable[[float], str] = floatToGoString  # which has no types
        self._labels = {
            metric.family: (frozenset(metric.labels), {*map(go_text, metric.buckets), _INF})
            for metric in gateway_metrics().values()
        }

    def has(self, key: str) -> bool:
        """Tell whether `key`, by which the metrics library stores a value, is of such a series."""
        family, _, labels, _ = msgspec.json.decode(key)
        declared, bounds = self._labels.get(family, (None, ()))
        bound = labels.pop("le", _INF)
        return declared == labels.keys() and bound in bounds
