"""Defines the alerts about regions, backends, models and revisions."""

from tools.monitoring.objectives import LATENCY_BOUND
from tools.monitoring.promql import grown
from tools.monitoring.rule import Alert, Case, Group, Series

_EU = 'instance="gateway-1", region="eu", endpoint="eu-0"'
_EU_1 = 'instance="gateway-1", region="eu", endpoint="eu-1"'
_US = 'instance="gateway-1", region="us", endpoint="us-0"'
_PLACE = {"region": "eu", "endpoint": "eu-0"}
_FINISH = "sluicegate_endpoint_predicted_finish_seconds"
_SLOWEST = f"max_over_time({_FINISH}[1m])"
"""It falls for a moment whenever a slow backend has finished what it had."""
_FASTEST = "sluicegate_endpoint_fastest_finish_seconds"
_BACKEND = 'job="backend", instance="eu-0:8100"'
_ON_BACKEND = {"job": "backend", "instance": "eu-0:8100"}
_GPU = 'device="0", uuid="GPU-1"'
_ITEMS = "sluicegate_items_total"
_OF_MODEL = 'instance="gateway-1", model="sentiment"'
_FAILED = f'sum by (model, revision) (rate({_ITEMS}{{source="failed"}}[5m]))'

_LOST_HOSTS = 'sluicegate_backend_lost_algorithm_hosts_total{reason!="worn_by_earlier_items"}'

ENDPOINTS = Group(
    "sluicegate-endpoints",
    (
        Alert(
            name="RegionLost",
            expr="max by (region) (sluicegate_endpoint_up) == 0"
            " unless min by (region) (sluicegate_endpoint_drained) == 1",
            lasts="30s",
            severity="page",
            summary="No backend of region {{ $labels.region }} is ready",
            description="Other regions take its work, if they have room.",
            fires=Case(
                series=(
                    Series(f"sluicegate_endpoint_up{{{_EU}}}", "1 1 0x10"),
                    Series(f"sluicegate_endpoint_up{{{_EU_1}}}", "1 1 0x10"),
                    Series(f"sluicegate_endpoint_up{{{_US}}}", "1x12"),
                ),
                at="4m",
                labels={"region": "eu"},
            ),
            quiet=Case(
                series=(
                    Series(f"sluicegate_endpoint_up{{{_EU}}}", "1 1 0x10"),
                    Series(f"sluicegate_endpoint_up{{{_EU_1}}}", "1x12"),
                ),
                at="4m",
            ),
        ),
        Alert(
            name="EndpointDown",
            expr="max by (region, endpoint) (sluicegate_endpoint_up) == 0"
            " unless max by (region, endpoint) (sluicegate_endpoint_drained) == 1",
            lasts="2m",
            severity="ticket",
            summary="Backend {{ $labels.endpoint }} of {{ $labels.region }} is not ready",
            description="No gateway finds it ready. Others of its region do its work.",
            fires=Case(
                series=(
                    Series(f"sluicegate_endpoint_up{{{_EU}}}", "1 0x10"),
                    Series(f"sluicegate_endpoint_drained{{{_EU}}}", "0x10"),
                ),
                at="5m",
                labels=_PLACE,
            ),
            quiet=Case(
                series=(
                    Series(f"sluicegate_endpoint_up{{{_EU}}}", "1 0x10"),
                    Series(f"sluicegate_endpoint_drained{{{_EU}}}", "1x10"),
                ),
                at="5m",
            ),
        ),
        Alert(
            name="EndpointEjectedRepeatedly",
            expr="count_over_time((sum by (region, endpoint)"
            " (increase(sluicegate_endpoint_ejections_total[2m])) > 0)[16m:2m]) > 2",
            severity="ticket",
            summary="Backend {{ $labels.endpoint }} of {{ $labels.region }} is ejected again and"
            " again",
            description="It answers probes and fails calls. Drain it, then read its log.",
            fires=Case(
                series=(Series(f"sluicegate_endpoint_ejections_total{{{_EU}}}", "0+1x20"),),
                at="15m",
                labels=_PLACE,
            ),
            quiet=Case(
                series=(Series(f"sluicegate_endpoint_ejections_total{{{_EU}}}", "0x9 64x10"),),
                at="15m",
            ),
        ),
        Alert(
            name="EndpointFailsCalls",
            expr="sum by (region, endpoint)"
            ' (rate(sluicegate_endpoint_calls_total{outcome="failed"}[2m]))'
            " / sum by (region, endpoint) (rate(sluicegate_endpoint_calls_total[2m])) > 0.05"
            " and sum by (region, endpoint)"
            ' (rate(sluicegate_endpoint_calls_total{outcome="failed"}[2m])) > 0.05',
            lasts="30s",
            severity="ticket",
            summary="Backend {{ $labels.endpoint }} of {{ $labels.region }} fails one call of"
            " twenty or more",
            description="Items are tried elsewhere, within the retry budget.",
            fires=Case(
                series=(
                    Series(
                        f'sluicegate_endpoint_calls_total{{{_EU}, outcome="failed"}}', "0+10x10"
                    ),
                    Series(f'sluicegate_endpoint_calls_total{{{_EU}, outcome="ok"}}', "0+90x10"),
                ),
                at="5m",
                labels=_PLACE,
            ),
            quiet=Case(
                series=(
                    Series(f'sluicegate_endpoint_calls_total{{{_EU}, outcome="failed"}}', "0+1x10"),
                    Series(f'sluicegate_endpoint_calls_total{{{_EU}, outcome="ok"}}', "0+99x10"),
                ),
                at="5m",
            ),
        ),
        Alert(
            name="EndpointSlow",
            expr=f"max by (region, endpoint) ({_SLOWEST}) > {LATENCY_BOUND}"
            f" and max by (region, endpoint) ({_SLOWEST})"
            f" > 3 * max by (region, endpoint) (max_over_time({_FASTEST}[1m]))",
            lasts="90s",
            severity="ticket",
            summary="Backend {{ $labels.endpoint }} of {{ $labels.region }} is much slower than the"
            " fastest of its models",
            description="Gateways give it less work. Callers may see a higher 99th percentile.",
            fires=Case(
                series=(
                    Series(f"{_FINISH}{{{_EU}}}", "2x10"),
                    Series(f"{_FASTEST}{{{_EU}}}", "0.02x10"),
                    Series(f"{_FINISH}{{{_EU_1}}}", "0.02x10"),
                    Series(f"{_FASTEST}{{{_EU_1}}}", "0.02x10"),
                ),
                at="4m",
                labels=_PLACE,
            ),
            quiet=Case(
                series=(
                    Series(f"{_FINISH}{{{_EU}}}", "0.7x10"),
                    Series(f"{_FASTEST}{{{_EU}}}", "0.6x10"),
                    Series(f"{_FINISH}{{{_EU_1}}}", "0.6x10"),
                    Series(f"{_FASTEST}{{{_EU_1}}}", "0.6x10"),
                    # Of another pool, which serves other, quicker models.
                    Series(f"{_FINISH}{{{_US}}}", "0.02x10"),
                    Series(f"{_FASTEST}{{{_US}}}", "0.02x10"),
                ),
                at="3m",
            ),
        ),
        Alert(
            name="EndpointDrainedForLong",
            expr="max by (region, endpoint) (sluicegate_endpoint_drained) == 1",
            lasts="1d",
            severity="ticket",
            summary="Backend {{ $labels.endpoint }} of {{ $labels.region }} is drained for a day",
            description="It costs money and does nothing: restore it, or take it away.",
            fires=Case(
                series=(Series(f"sluicegate_endpoint_drained{{{_EU}}}", "1x1500"),),
                at="1470m",
                labels=_PLACE,
            ),
            quiet=Case(
                series=(Series(f"sluicegate_endpoint_drained{{{_EU}}}", "1x700 0x60 1x800"),),
                at="1470m",
            ),
        ),
        Alert(
            name="BackendsOverloaded",
            expr="sum by (model)"
            ' (rate(sluicegate_request_duration_seconds_count{outcome="overloaded"}[5m]))'
            " / sum by (model) (rate(sluicegate_request_duration_seconds_count[5m])) > 0.01"
            " and sum by (model)"
            ' (rate(sluicegate_request_duration_seconds_count{outcome="overloaded"}[5m])) > 0.05',
            lasts="1m",
            severity="page",
            summary="Requests for {{ $labels.model }} are refused because backends are full",
            description="Callers get 503 with `Retry-After`. Add backends.",
            fires=Case(
                series=(
                    Series(
                        "sluicegate_request_duration_seconds_count"
                        f'{{{_OF_MODEL}, outcome="overloaded"}}',
                        "0+5x10",
                    ),
                    Series(
                        f'sluicegate_request_duration_seconds_count{{{_OF_MODEL}, outcome="ok"}}',
                        "0+95x10",
                    ),
                ),
                at="8m",
                labels={"model": "sentiment"},
            ),
            quiet=Case(
                series=(
                    Series(
                        "sluicegate_request_duration_seconds_count"
                        f'{{{_OF_MODEL}, outcome="overloaded"}}',
                        "0+5x10",
                    ),
                    Series(
                        f'sluicegate_request_duration_seconds_count{{{_OF_MODEL}, outcome="ok"}}',
                        "0+995x10",
                    ),
                ),
                at="8m",
            ),
        ),
        Alert(
            name="WorkLeavesItsRegion",
            expr="sum by (from_region, to_region) (rate(sluicegate_spilled_items_total[5m])) > 1",
            lasts="5m",
            severity="ticket",
            summary="Items of {{ $labels.from_region }} are answered in {{ $labels.to_region }}",
            description="The preferred region is away, full or slow; answers take longer.",
            fires=Case(
                series=(
                    Series(
                        "sluicegate_spilled_items_total"
                        '{instance="gateway-1", from_region="eu", to_region="us"}',
                        "0+600x20",
                    ),
                ),
                at="12m",
                labels={"from_region": "eu", "to_region": "us"},
            ),
            quiet=Case(
                series=(
                    Series(
                        "sluicegate_spilled_items_total"
                        '{instance="gateway-1", from_region="eu", to_region="us"}',
                        "0+30x20",
                    ),
                ),
                at="12m",
            ),
        ),
        Alert(
            name="RevisionFails",
            expr=f"{_FAILED} / sum by (model, revision) (rate({_ITEMS}[5m])) > 0.05"
            f" and {_FAILED} > 0.05",
            lasts="30s",
            severity="page",
            summary="Items of {{ $labels.model }}, revision {{ $labels.revision }}, fail",
            description="Callers get errors for this model. If the revision is new, roll it back.",
            fires=Case(
                series=(
                    Series(f'{_ITEMS}{{{_OF_MODEL}, revision="b2", source="failed"}}', "0+60x10"),
                    Series(f'{_ITEMS}{{{_OF_MODEL}, revision="b2", source="computed"}}', "0+60x10"),
                    Series(f'{_ITEMS}{{{_OF_MODEL}, revision="a1", source="computed"}}', "0+60x10"),
                ),
                at="5m",
                labels={"model": "sentiment", "revision": "b2"},
            ),
            quiet=Case(
                series=(
                    Series(f'{_ITEMS}{{{_OF_MODEL}, revision="b2", source="failed"}}', "0+1x10"),
                    Series(f'{_ITEMS}{{{_OF_MODEL}, revision="b2", source="computed"}}', "0+99x10"),
                ),
                at="5m",
            ),
        ),
        Alert(
            name="ModelNotLoaded",
            expr="group by (model) (max_over_time(sluicegate_backend_model_loaded[6h]))"
            " unless group by (model) (sluicegate_backend_model_loaded)"
            ' and on () sum(up{job=~"(.+/)?backend"}) > 0',
            lasts="1m",
            severity="page",
            summary="No backend serves {{ $labels.model }} any more",
            description="Callers of this model get `upstream_unavailable`, or cached answers.",
            fires=Case(
                series=(
                    Series(
                        "sluicegate_backend_model_loaded"
                        f'{{{_BACKEND}, model="sentiment", revision="a1"}}',
                        "1x5 stale",
                    ),
                    Series('up{job="backend", instance="eu-1:8100"}', "1x15"),
                ),
                at="10m",
                labels={"model": "sentiment"},
            ),
            quiet=Case(
                series=(
                    Series(
                        "sluicegate_backend_model_loaded"
                        f'{{{_BACKEND}, model="sentiment", revision="a1"}}',
                        "1x5 stale",
                    ),
                    Series(
                        "sluicegate_backend_model_loaded"
                        f'{{{_BACKEND}, model="sentiment", revision="b2"}}',
                        "1x15",
                    ),
                    Series(
                        "sluicegate_backend_model_loaded"
                        f'{{{_BACKEND}, model="alone", revision="a1"}}',
                        "1x15",
                    ),
                    Series(f"up{{{_BACKEND}}}", "1x15"),
                ),
                at="10m",
            ),
        ),
        Alert(
            name="BackendNotReady",
            expr="sluicegate_backend_ready == 0",
            lasts="5m",
            severity="ticket",
            summary="Backend {{ $labels.instance }} runs and is not ready",
            description="A model could not be loaded, or its device or upstream is away.",
            fires=Case(
                series=(Series(f"sluicegate_backend_ready{{{_BACKEND}}}", "0x10"),),
                at="8m",
                labels={"job": "backend", "instance": "eu-0:8100"},
            ),
            quiet=Case(
                series=(Series(f"sluicegate_backend_ready{{{_BACKEND}}}", "0x3 1x10"),), at="8m"
            ),
        ),
        Alert(
            name="AlgorithmProcessesLost",
            expr=f"{grown(_LOST_HOSTS, 'model, reason', '15m')} > 3",
            severity="ticket",
            summary="Processes of the algorithm of {{ $labels.model }} are lost:"
            " {{ $labels.reason }}",
            description="The items that they had fail. The model owner must mend the algorithm.",
            fires=Case(
                series=(
                    Series(
                        "sluicegate_backend_lost_algorithm_hosts_total"
                        f'{{{_BACKEND}, model="mood", reason="over_its_memory"}}',
                        "0+1x20",
                    ),
                ),
                at="15m",
                labels={"model": "mood", "reason": "over_its_memory"},
            ),
            quiet=Case(
                series=(
                    Series(
                        "sluicegate_backend_lost_algorithm_hosts_total"
                        f'{{{_BACKEND}, model="mood", reason="worn_by_earlier_items"}}',
                        "0+1x20",
                    ),
                ),
                at="15m",
            ),
        ),
        Alert(
            name="GpuMemoryNearlyFull",
            expr="sluicegate_backend_gpu_memory_used_bytes"
            " / sluicegate_backend_gpu_memory_total_bytes > 0.95",
            lasts="10m",
            severity="ticket",
            summary="Memory of GPU {{ $labels.device }} of {{ $labels.instance }} is nearly full",
            description="The next large batch may fail.",
            fires=Case(
                series=(
                    Series(
                        f"sluicegate_backend_gpu_memory_used_bytes{{{_BACKEND}, {_GPU}}}",
                        "78x20",
                    ),
                    Series(
                        f"sluicegate_backend_gpu_memory_total_bytes{{{_BACKEND}, {_GPU}}}",
                        "80x20",
                    ),
                ),
                at="15m",
                labels={**_ON_BACKEND, "device": "0", "uuid": "GPU-1"},
            ),
            quiet=Case(
                series=(
                    Series(
                        f"sluicegate_backend_gpu_memory_used_bytes{{{_BACKEND}, {_GPU}}}",
                        "70x20",
                    ),
                    Series(
                        f"sluicegate_backend_gpu_memory_total_bytes{{{_BACKEND}, {_GPU}}}",
                        "80x20",
                    ),
                ),
                at="15m",
            ),
        ),
        Alert(
            name="GpuThrottled",
            expr="max by (job, instance, device, uuid, reason)"
            ' (sluicegate_backend_gpu_throttled{reason=~"heat|hardware"}) > 0',
            lasts="10m",
            severity="ticket",
            summary="GPU {{ $labels.device }} of {{ $labels.instance }} is slowed down:"
            " {{ $labels.reason }}",
            description="It computes with low clocks, to cool down or to save itself.",
            fires=Case(
                series=(
                    Series(
                        f'sluicegate_backend_gpu_throttled{{{_BACKEND}, {_GPU}, reason="heat"}}',
                        "1x20",
                    ),
                ),
                at="15m",
                labels={**_ON_BACKEND, "device": "0", "uuid": "GPU-1", "reason": "heat"},
            ),
            quiet=Case(
                series=(
                    Series(
                        f'sluicegate_backend_gpu_throttled{{{_BACKEND}, {_GPU}, reason="power"}}',
                        "1x20",
                    ),
                ),
                at="15m",
            ),
        ),
        Alert(
            name="GpuMemoryErrors",
            expr="max by (job, instance, device, uuid)"
            ' (sluicegate_backend_gpu_ecc_errors_total{kind="uncorrected"}) > 0',
            severity="ticket",
            summary="GPU {{ $labels.device }} of {{ $labels.instance }} has memory errors",
            description="Errors of its memory were not corrected; work on it failed.",
            fires=Case(
                series=(
                    Series(
                        "sluicegate_backend_gpu_ecc_errors_total"
                        f'{{{_BACKEND}, {_GPU}, kind="uncorrected"}}',
                        "0x5 1x15",
                    ),
                ),
                at="15m",
                labels={**_ON_BACKEND, "device": "0", "uuid": "GPU-1"},
            ),
            quiet=Case(
                series=(
                    Series(
                        "sluicegate_backend_gpu_ecc_errors_total"
                        f'{{{_BACKEND}, {_GPU}, kind="corrected"}}',
                        "0+1x20",
                    ),
                ),
                at="15m",
            ),
        ),
    ),
)
