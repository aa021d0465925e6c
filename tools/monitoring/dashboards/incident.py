"""Defines the incident page: what fires, what callers notice, and the likely causes."""

from tools.monitoring.grafana import Dashboard, Panel, Query, Row
from tools.monitoring.promql import quantile, rate, ratio

_REQUESTS = "sluicegate_request_duration_seconds_count"
_BAD = 'outcome=~"server_error|overloaded|deadline"'
_BY = "region, endpoint"

INCIDENT = Dashboard(
    uid="incident",
    title="Incident",
    description="From top to bottom: what fires, what callers notice, which part it is.",
    since="now-1h",
    rows=(
        Row(
            "What fires",
            (
                Panel(
                    title="Alerts",
                    unit="none",
                    kind="table",
                    width=24,
                    queries=(
                        Query(
                            "sum by (alertname, severity, region, endpoint, model, dependency,"
                            ' instance) (ALERTS{alertstate="firing"})'
                        ),
                    ),
                    description="Open the page of each in docs/runbooks; begin with those whose"
                    " severity is `page`.",
                    may_be_empty=True,
                ),
            ),
        ),
        Row(
            "What callers notice",
            (
                Panel(
                    title="Requests that failed, by model and outcome",
                    unit="reqps",
                    width=8,
                    queries=(
                        Query(rate(_REQUESTS, "model, outcome", _BAD), "{{model}} {{outcome}}"),
                    ),
                    description="One model: a revision. All: a region, a dependency or load.",
                    may_be_empty=True,
                ),
                Panel(
                    title="99th percentile by model",
                    unit="s",
                    width=8,
                    queries=(
                        Query(
                            quantile(0.99, "sluicegate_request_duration_seconds", "model"),
                            "{{model}}",
                        ),
                    ),
                    description="All outcomes. One model: its pool. All: a cache or the network.",
                ),
                Panel(
                    title="Refused by limits",
                    unit="reqps",
                    width=8,
                    queries=(
                        Query(
                            rate(
                                "sluicegate_limit_decisions_total",
                                "policy",
                                'decision="refused"',
                            ),
                            "{{policy}}",
                        ),
                    ),
                    description="A hot tenant: the overview of `/console` names it.",
                    may_be_empty=True,
                ),
            ),
        ),
        Row(
            "Regions and backends",
            (
                Panel(
                    title="Share of backends ready, by region",
                    unit="percentunit",
                    width=8,
                    queries=(
                        Query(
                            f"avg by (region) (max by ({_BY}) (sluicegate_endpoint_up))",
                            "{{region}}",
                        ),
                    ),
                    description="0: the region is lost, and its work goes to the others.",
                ),
                Panel(
                    title="Predicted finish",
                    unit="s",
                    width=8,
                    queries=(
                        Query(
                            f"max by ({_BY}) (sluicegate_endpoint_predicted_finish_seconds)",
                            "{{region}} {{endpoint}}",
                        ),
                    ),
                    description="One line above the others is a slow backend: drain it.",
                ),
                Panel(
                    title="Failures of calls, by cause",
                    unit="ops",
                    width=8,
                    queries=(
                        Query(
                            rate("sluicegate_endpoint_failures_total", f"{_BY}, cause"),
                            "{{region}} {{endpoint}} {{cause}}",
                        ),
                    ),
                    description="Backend and cause in one line; the region page has more.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Failed items by revision",
                    unit="ops",
                    width=8,
                    queries=(
                        Query(
                            rate("sluicegate_items_total", "model, revision", 'source="failed"'),
                            "{{model}} {{revision}}",
                        ),
                    ),
                    description="One revision alone: roll it back.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Items that went to another region",
                    unit="ops",
                    width=8,
                    queries=(
                        Query(
                            rate("sluicegate_spilled_items_total", "from_region, to_region"),
                            "{{from_region}} to {{to_region}}",
                        ),
                    ),
                    description="Where the work of a lost or full region goes.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Share of items found in a cache",
                    unit="percentunit",
                    width=8,
                    queries=(
                        Query(
                            ratio(
                                rate("sluicegate_cache_lookups_total", "tier", 'result="hit"'),
                                rate("sluicegate_cache_lookups_total", "tier"),
                            ),
                            "{{tier}}",
                        ),
                    ),
                    description="A tier that falls to 0 was lost.",
                ),
            ),
        ),
        Row(
            "Dependencies",
            (
                Panel(
                    title="Reached",
                    unit="none",
                    width=8,
                    queries=(
                        Query("min by (dependency) (sluicegate_dependency_up)", "{{dependency}}"),
                    ),
                    description="0: some gateway does not reach it.",
                ),
                Panel(
                    title="Clocks",
                    unit="s",
                    width=8,
                    queries=(
                        Query(
                            "max by (instance, dependency) (sluicegate_clock_skew_seconds)",
                            "{{instance}} {{dependency}}",
                        ),
                    ),
                    description="How far the clocks of gateways are from those of the servers.",
                ),
                Panel(
                    title="Limits decided without Redis",
                    unit="ops",
                    width=8,
                    queries=(Query(rate("sluicegate_limit_local_decisions_total")),),
                    description="Each worker gives a share of each limit by itself meanwhile.",
                ),
                Panel(
                    title="Free space of data directories",
                    unit="bytes",
                    width=8,
                    queries=(
                        Query(
                            "min by (instance) (sluicegate_data_disk_free_bytes)", "{{instance}}"
                        ),
                    ),
                    description="At 0 nothing is answered that cannot be billed: make room.",
                ),
                Panel(
                    title="Lag of events",
                    unit="s",
                    width=8,
                    queries=(
                        Query("max(sluicegate_shipper_lag_seconds)", "shipper"),
                        Query("max(sluicegate_billing_lag_seconds)", "billing"),
                    ),
                    description="Customers do not notice; budgets and invoices are late.",
                ),
                Panel(
                    title="Late iterations of workers' event loops, 99th percentile",
                    unit="s",
                    width=8,
                    queries=(
                        Query(
                            quantile(
                                0.99,
                                "sluicegate_event_loop_lag_seconds",
                                "instance",
                                'role="gateway"',
                            ),
                            "{{instance}}",
                        ),
                    ),
                    description="Above a tenth of a second workers are overloaded.",
                ),
                Panel(
                    title="Changes: documents taken, processes started again",
                    unit="none",
                    width=8,
                    queries=(
                        Query(
                            "sum by (result) (increase(sluicegate_config_reloads_total[10m]))",
                            "document {{result}}",
                        ),
                        Query(
                            "sum by (role, reason)"
                            " (increase(sluicegate_process_restarts_total[10m]))",
                            "{{role}} {{reason}}",
                        ),
                    ),
                    description="What changed just before it began? `GET /admin/audit` says who.",
                    may_be_empty=True,
                ),
            ),
        ),
    ),
)
