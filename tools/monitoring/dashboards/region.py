"""Defines the page of regions and backends: health, load, failures and devices."""

from tools.monitoring.dashboards.variables import ENDPOINT, OF_ENDPOINT, OF_REGION, REGION
from tools.monitoring.grafana import Dashboard, Panel, Query, Row
from tools.monitoring.promql import quantile, rate, ratio

_PLACE = "{{region}} {{endpoint}}"
_BY = "region, endpoint"

REGION_PAGE = Dashboard(
    uid="region",
    title="Regions and backends",
    description="Which backend or region is away, slow or overloaded, as gateways see it.",
    variables=(REGION, ENDPOINT),
    rows=(
        Row(
            "Health",
            (
                Panel(
                    title="Ready",
                    unit="none",
                    queries=(
                        Query(f"min by ({_BY}) (sluicegate_endpoint_up{{{OF_ENDPOINT}}})", _PLACE),
                    ),
                    description="0 where a gateway finds it not ready: `/health/ready` of the"
                    " backend names what is missing. All of a region at 0: the way to it, or its"
                    " models.",
                ),
                Panel(
                    title="Share of its work that it is given",
                    unit="percentunit",
                    queries=(
                        Query(
                            f"avg by ({_BY}) (sluicegate_endpoint_share{{{OF_ENDPOINT}}})", _PLACE
                        ),
                    ),
                    description="Below 1 after an ejection or a restore, and rising. If it stays"
                    " low, the backend fails again and again.",
                ),
                Panel(
                    title="Ejected or drained",
                    unit="none",
                    queries=(
                        Query(
                            f"max by ({_BY}) (sluicegate_endpoint_ejected{{{OF_ENDPOINT}}})",
                            f"{_PLACE} ejected",
                        ),
                        Query(
                            f"max by ({_BY}) (sluicegate_endpoint_drained{{{OF_ENDPOINT}}})",
                            f"{_PLACE} drained",
                        ),
                    ),
                    description="Ejected by what gateways saw; drained by an operator, who restores"
                    " it with `sluicegate regions restore`.",
                ),
                Panel(
                    title="Failures by cause",
                    unit="ops",
                    queries=(
                        Query(
                            rate(
                                "sluicegate_endpoint_failures_total",
                                f"{_BY}, cause",
                                OF_ENDPOINT,
                            ),
                            f"{_PLACE} {{{{cause}}}}",
                        ),
                    ),
                    description="Refused connections: the process is away. Timeouts: it hangs or"
                    " the way to it is cut. Errors: read its log.",
                    may_be_empty=True,
                ),
            ),
        ),
        Row(
            "Load",
            (
                Panel(
                    title="Calls by outcome",
                    unit="ops",
                    queries=(
                        Query(
                            rate("sluicegate_endpoint_calls_total", f"{_BY}, outcome", OF_ENDPOINT),
                            f"{_PLACE} {{{{outcome}}}}",
                        ),
                    ),
                    description="`refused`: its queue was full. `given_up`: the request was over or"
                    " another backend was faster.",
                ),
                Panel(
                    title="Items in flight",
                    unit="none",
                    queries=(
                        Query(
                            f"sum by ({_BY})"
                            f" (sluicegate_endpoint_in_flight_items{{{OF_ENDPOINT}}})",
                            _PLACE,
                        ),
                    ),
                    description="One backend far above the others of its region: it is slow, or has"
                    " the only copy of a model.",
                ),
                Panel(
                    title="Predicted time until a new item is done",
                    unit="s",
                    queries=(
                        Query(
                            f"max by ({_BY})"
                            f" (sluicegate_endpoint_predicted_finish_seconds{{{OF_ENDPOINT}}})",
                            _PLACE,
                        ),
                    ),
                    description="What gateways choose by. One backend alone rises: it is slow. All"
                    " rise: add backends.",
                ),
                Panel(
                    title="Hedges, retries and items that went to another region",
                    unit="ops",
                    queries=(
                        Query(
                            rate("sluicegate_hedges_total", "region", OF_REGION),
                            "hedges {{region}}",
                        ),
                        Query(
                            rate("sluicegate_retries_total", "region", OF_REGION),
                            "retries {{region}}",
                        ),
                        Query(
                            rate("sluicegate_spilled_items_total", "from_region, to_region"),
                            "{{from_region}} to {{to_region}}",
                        ),
                    ),
                    description="Hedges rise with slow backends, retries with failing ones, spilled"
                    " items with a region that is away or full.",
                    may_be_empty=True,
                ),
            ),
        ),
        Row(
            "In backends",
            (
                Panel(
                    title="Seconds of work that waits",
                    unit="s",
                    queries=(
                        Query(
                            "sum by (instance) (sluicegate_backend_queued_seconds)", "{{instance}}"
                        ),
                    ),
                    description="Above a tenth of a second for long: add backends, or let KEDA.",
                ),
                Panel(
                    title="Busy share of devices",
                    unit="percentunit",
                    queries=(
                        Query(
                            "max by (instance) (sluicegate_backend_device_busy_share)",
                            "{{instance}}",
                        ),
                    ),
                    description="Near 1 with work that waits: the pool is too small. Near 0 while"
                    " gateways wait: the way between them.",
                ),
                Panel(
                    title="Padding's share of work",
                    unit="percentunit",
                    queries=(
                        Query(
                            "max by (instance, encoder) (sluicegate_backend_padding_waste_ratio)",
                            "{{instance}} {{encoder}}",
                        ),
                    ),
                    description="Above a quarter: few rows of mixed lengths.",
                ),
                Panel(
                    title="Late iterations of event loops, 99th percentile",
                    unit="s",
                    queries=(
                        Query(
                            quantile(0.99, "sluicegate_backend_event_loop_lag_seconds", "instance"),
                            "{{instance}}",
                        ),
                    ),
                    description="Above a tenth of a second: the machine has too few cores, or a"
                    " thread holds the interpreter.",
                ),
                Panel(
                    title="Memory of devices in use",
                    unit="percentunit",
                    queries=(
                        Query(
                            "sluicegate_backend_gpu_memory_used_bytes"
                            " / sluicegate_backend_gpu_memory_total_bytes",
                            "{{instance}} {{device}}",
                        ),
                    ),
                    description="GPUs only. Above 0.95: the next batch may fail; see docs/gpu.md.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Use of GPUs",
                    unit="percentunit",
                    queries=(
                        Query(
                            "sluicegate_backend_gpu_utilization_ratio", "{{instance}} {{device}}"
                        ),
                    ),
                    description="GPUs only, by NVML. Low with work that waits: batches are too"
                    " small, or the processor cannot tokenize fast enough.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Power of GPUs",
                    unit="watt",
                    queries=(
                        Query("sluicegate_backend_gpu_power_watts", "{{instance}} {{device}}"),
                    ),
                    description="GPUs only. Far below the card's limit while *Use of GPUs* is near"
                    " 1: kernels run, but small ones; batches are too small.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Throttled GPUs",
                    unit="short",
                    queries=(
                        Query(
                            "sluicegate_backend_gpu_throttled > 0",
                            "{{instance}} {{device}} {{reason}}",
                        ),
                    ),
                    description="GPUs only. `power` is usual under full load. `heat` and"
                    " `hardware` are not: look at fans, air and power supply.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Memory errors of GPUs",
                    unit="short",
                    queries=(
                        Query(
                            "sluicegate_backend_gpu_ecc_errors_total",
                            "{{instance}} {{device}} {{kind}}",
                        ),
                    ),
                    description="GPUs only, since the driver was loaded. One that was not"
                    " corrected: the card needs a reset, and if it comes back, a replacement.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Memory of processes",
                    unit="bytes",
                    queries=(
                        Query(
                            "max by (instance) (sluicegate_backend_resident_memory_bytes)",
                            "{{instance}}",
                        ),
                    ),
                    description="If it grows without end, restart the backend at a quiet hour and"
                    " report it with the models that it serves.",
                ),
                Panel(
                    title="Share of calls that failed",
                    unit="percentunit",
                    queries=(
                        Query(
                            ratio(
                                rate(
                                    "sluicegate_endpoint_calls_total",
                                    _BY,
                                    f'{OF_ENDPOINT}, outcome="failed"',
                                ),
                                rate("sluicegate_endpoint_calls_total", _BY, OF_ENDPOINT),
                            ),
                            _PLACE,
                        ),
                    ),
                    description="One backend: drain it and read its log. All of a region: the way"
                    " to it.",
                    may_be_empty=True,
                ),
            ),
        ),
    ),
)
