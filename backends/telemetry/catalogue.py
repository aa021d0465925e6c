"""Declares every metric on the metrics page of a backend."""

from functools import partial
from typing import Final

from wire.metric_declaration import MetricDeclaration, MetricKind, MetricSection, unit_of

SECONDS: Final = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""The upper bounds of histogram buckets, in seconds."""


def _metric(name: str, text: str, *labels: str, kind: MetricKind) -> MetricDeclaration:
    return MetricDeclaration(
        name=f"sluicegate_backend_{name}",
        kind=kind,
        help=text,
        labels=labels,
        unit=unit_of(name),
        processes=("backend",),
        buckets=SECONDS if kind is MetricKind.HISTOGRAM else (),
    )


_counter = partial(_metric, kind=MetricKind.COUNTER)
_gauge = partial(_metric, kind=MetricKind.GAUGE)
_histogram = partial(_metric, kind=MetricKind.HISTOGRAM)

_BACKEND: Final = (
    _gauge("ready", "Whether the backend is ready."),
    _gauge("model_loaded", "Is 1 for each served revision.", "model", "revision"),
    _gauge("calls_in_flight", "Calls being answered."),
    _counter("items_total", "Items. `outcome`: `done`, `refused`, `expired`, `failed`, "
             "`cancelled`.", "model", "task", "outcome"),
    _counter("lost_algorithm_hosts_total", "Failed processes of algorithms. The next item starts "
             "a new process. `reason`: `ended` by itself; killed as "
             "`held_by_one_step`, `held_after_its_time`, `starved`, `over_its_memory`, "
             "`over_its_threads`, `busy_without_an_item`; replaced as "
             "`worn_by_earlier_items`; `not_started`.",
             "model", "reason"),
)  # fmt: skip
_REVISIONS: Final = (
    _counter("arm_items_total", "Items by the revision that answered, and by outcome.",
             "model", "arm", "outcome"),
    _histogram("arm_duration_seconds", "Time from a call's arrival to an item's result, by the "
               "revision that answered.", "model", "arm"),
    _counter("arm_labels_total", "Results by their first label and the revision that answered.",
             "model", "arm", "label"),
    _counter("shadow_items_total", "Items mirrored to a shadow revision. `outcome`: `same`, "
             "`moved`, `changed`, `failed`, `skipped`.", "model", "arm", "shadow", "outcome"),
    _gauge("shadow_largest_difference", "The largest difference between numbers of results that "
           "otherwise agree.", "model", "arm", "shadow"),
)  # fmt: skip
_ENCODERS: Final = (
    _histogram("phase_duration_seconds", "Time of a phase. `phase`: `tokenize` (a call of the "
               "tokenizer, with the wait for its thread), `queue` (the longest wait of a batch's "
               "rows), `run` (a batch).", "encoder", "phase"),
    _counter("batches_total", "Batches run.", "encoder"),
    _counter("rows_total", "Rows run through the encoder.", "encoder"),
    _counter("tokens_total", "Tokens run, without padding.", "encoder"),
    _counter("padded_tokens_total", "Tokens of padded batches: the number of rows times the length "
             "of the longest row. This includes positions that a graph skips, but not the rounding "
             "of shapes on a GPU.", "encoder"),
    _counter("busy_seconds_total", "Seconds that worker threads were busy.", "encoder"),
    _counter("failed_rows_total", "Rows that the model could not compute.", "encoder"),
    _counter("skipped_rows_total", "Rows dropped because their callers had disconnected.",
             "encoder"),
    _counter("expired_rows_total", "Rows dropped because they could not end before their deadline.",
             "encoder"),
    _counter("late_rows_total", "Rows run after their deadline; expected to stay 0.", "encoder"),
    _counter("refused_rows_total", "Rows refused because the queue was full, or too slow for their "
             "deadline. An item that is refused before tokenization counts as one row.",
             "encoder"),
    _counter("known_rows_total", "Rows answered from the row cache.", "encoder"),
    _counter("joined_rows_total", "Rows coalesced with an equal row in flight.", "encoder"),
    _gauge("queued_rows", "Rows waiting.", "encoder"),
    _gauge("queued_tokens", "Tokens waiting. Use this metric for autoscaling.", "encoder"),
    _gauge("runs_in_flight", "Batches running.", "encoder"),
    _gauge("rows_per_second", "Rows per second while the encoder is busy.", "encoder"),
    _gauge("tokens_per_second", "Tokens per second while the encoder is busy.", "encoder"),
    _gauge("queued_seconds", "Predicted seconds to run the waiting interactive rows.", "encoder"),
    _gauge("padding_waste_ratio", "Fraction of the predicted time that padding takes, without the "
           "fixed cost of batches. Positions that a graph skips cost nothing.", "encoder"),
    _counter("releases_total", "Batches by the reason why no more rows joined: `idle` (no more "
             "rows waited), `full`, `deadline` (the batch would be late), `length` (lengths differ "
             "too much), `outlier` (like `length`, for a batch of one row).",
             "encoder", "reason"),
)  # fmt: skip
_PROCESS: Final = (
    _gauge("device_busy_share", "Utilization of the device over the last seconds."),
    _gauge("gpu_memory_used_bytes", "GPU memory that all processes use, if NVML is "
           "available. Each backend reports all GPUs that it can see. `device` is the driver's "
           "number.", "device", "uuid"),
    _gauge("gpu_memory_total_bytes", "Memory of a GPU.", "device", "uuid"),
    _gauge("gpu_utilization_ratio", "Fraction of the last sample period in which a GPU was busy. "
           "MIG devices do not report it.", "device", "uuid"),
    _gauge("gpu_power_watts", "Power draw of a GPU.", "device", "uuid"),
    _gauge("gpu_throttled", "Is 1 while clocks are reduced because of the `reason`: `power`, "
           "`heat` or `hardware`.", "device", "uuid", "reason"),
    _counter("gpu_ecc_errors_total", "Memory errors of a GPU since its driver was loaded. "
             "`kind`: `corrected`, `uncorrected`.", "device", "uuid", "kind"),
    _gauge("row_cache_bytes", "Size of the row cache."),
    _gauge("row_cache_rows", "Rows in the row cache."),
    _histogram("event_loop_lag_seconds", "Delay of an event-loop timer, measured ten times a "
               "second."),
    _histogram("event_loop_held_seconds", "How long code held the event loop, at least: the delay "
               "without the time that the loop's thread waited for a core."),
    _gauge("resident_memory_bytes", "Resident memory of the process."),
    _counter("cpu_seconds_total", "CPU time of the process."),
    _counter("spans_total", "Spans. `outcome`: `exported`, `failed`, `dropped` (the queue was "
             "full).", "outcome"),
)  # fmt: skip

BACKEND_METRICS: Final = (
    MetricSection(title="The backend and its models", metrics=_BACKEND),
    MetricSection(title="Revisions", metrics=_REVISIONS),
    MetricSection(title="Encoders and their queues", metrics=_ENCODERS),
    MetricSection(title="Device and process", metrics=_PROCESS),
)


def backend_metrics() -> dict[str, MetricDeclaration]:
    """Return every metric of a backend by its name."""
    return {metric.name: metric for section in BACKEND_METRICS for metric in section.metrics}
