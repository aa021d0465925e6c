"""Defines the overview: traffic, answers, errors and what is degraded, of a whole deployment."""

from tools.monitoring.grafana import Dashboard, Panel, Query, Row
from tools.monitoring.promql import quantile, rate, ratio

_REQUESTS = "sluicegate_request_duration_seconds_count"
_DURATION = "sluicegate_request_duration_seconds"
_BAD = 'outcome=~"server_error|overloaded|deadline"'

OVERVIEW = Dashboard(
    uid="overview",
    title="Overview",
    description="Is anything wrong, and since when? Begin here; the incident page says where.",
    rows=(
        Row(
            "Now",
            (
                Panel(
                    title="Requests a second",
                    unit="reqps",
                    kind="stat",
                    width=4,
                    queries=(Query(rate("sluicegate_requests_total")),),
                    description="All routes. If it falls to nothing, callers do not reach the"
                    " gateways: look at the balancer, certificates and DNS.",
                ),
                Panel(
                    title="Requests that failed",
                    unit="percentunit",
                    kind="stat",
                    width=4,
                    thresholds=(0.001, 0.01),
                    queries=(
                        Query(
                            ratio(
                                f"({rate(_REQUESTS, where=_BAD)} or vector(0))",
                                rate(_REQUESTS),
                            )
                        ),
                    ),
                    description="Server errors, refusals because backends are full, and deadlines."
                    " If it rises, open the incident page.",
                ),
                Panel(
                    title="99th percentile",
                    unit="s",
                    kind="stat",
                    width=4,
                    thresholds=(0.25, 1.0),
                    queries=(Query(quantile(0.99, _DURATION, where='outcome="ok"')),),
                    description="Of requests that were answered. If it rises, compare hits and"
                    " misses on the cache page, then backends on the region page.",
                ),
                Panel(
                    title="Items answered without a backend",
                    unit="percentunit",
                    kind="stat",
                    width=4,
                    queries=(
                        Query(
                            ratio(
                                "("
                                + rate(
                                    "sluicegate_items_total",
                                    where='source=~"memory_hit|redis_hit|stale"',
                                )
                                + " or vector(0))",
                                rate("sluicegate_items_total"),
                            )
                        ),
                    ),
                    description="If it falls while traffic is the same, a cache was lost or purged,"
                    " or a revision is new; backends have more work.",
                ),
                Panel(
                    title="Backends ready",
                    unit="percentunit",
                    kind="stat",
                    width=4,
                    queries=(Query("avg(max by (region, endpoint) (sluicegate_endpoint_up))"),),
                    description="Share of the backends that gateways find ready. Below 1, the"
                    " region page shows which is not.",
                ),
                Panel(
                    title="Alerts that fire",
                    unit="none",
                    kind="stat",
                    width=4,
                    thresholds=(1.0, 3.0),
                    queries=(Query('count(ALERTS{alertstate="firing"}) or vector(0)'),),
                    description="Each has a page in docs/runbooks, which its annotation names.",
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel(
                    title="Requests by outcome",
                    unit="reqps",
                    stacked=True,
                    queries=(Query(rate(_REQUESTS, "outcome"), "{{outcome}}"),),
                    description="`overloaded`: backends were full. `rate_limited`: limits of"
                    " tenants. `client_error`: what callers sent. `server_error`: ours.",
                ),
                Panel(
                    title="Requests by route",
                    unit="reqps",
                    stacked=True,
                    queries=(Query(rate("sluicegate_requests_total", "route"), "{{route}}"),),
                    description="Which API is used. A new route that rises alone is one caller.",
                ),
                Panel(
                    title="Duration of requests",
                    unit="s",
                    queries=tuple(
                        Query(
                            quantile(share, _DURATION, where='outcome="ok"'), f"p{share:.0%}"[:-1]
                        )
                        for share in (0.5, 0.95, 0.99)
                    ),
                    description="If the median rises, most items are misses or backends are slow;"
                    " if only the 99th percentile does, a part of backends or models is slow.",
                ),
                Panel(
                    title="Items by source",
                    unit="ops",
                    stacked=True,
                    queries=(Query(rate("sluicegate_items_total", "source"), "{{source}}"),),
                    description="Where answers came from. `failed` should be 0; `refused` is bad"
                    " input, or no room or time; more `computed` is more work for backends.",
                ),
            ),
        ),
        Row(
            "Machines",
            (
                Panel(
                    title="Processor time by role",
                    unit="none",
                    queries=(
                        Query(
                            rate("sluicegate_process_cpu_seconds_total", "instance, role"),
                            "{{instance}} {{role}}",
                        ),
                    ),
                    description="Cores in use. Workers near one core each need more workers or"
                    " machines.",
                ),
                Panel(
                    title="Memory by role",
                    unit="bytes",
                    queries=(
                        Query(
                            "sum by (instance, role) (sluicegate_process_resident_memory_bytes)",
                            "{{instance}} {{role}}",
                        ),
                    ),
                    description="If one role grows without end, the supervisor replaces it at its"
                    " bound: see restarts.",
                ),
                Panel(
                    title="Restarts of processes",
                    unit="none",
                    queries=(
                        Query(
                            "sum by (instance, role, reason)"
                            " (increase(sluicegate_process_restarts_total[1h]))",
                            "{{instance}} {{role}} {{reason}}",
                        ),
                    ),
                    description="In the last hour. `silent`: its event loop hung; `memory`: over"
                    " its bound; `ended`: read its log.",
                    may_be_empty=True,
                ),
                Panel(
                    title="Versions",
                    unit="none",
                    kind="table",
                    queries=(Query("count by (version, instance) (sluicegate_build_info)"),),
                    description="More than one version is an upgrade under way, or one that"
                    " stopped.",
                ),
            ),
        ),
    ),
)
