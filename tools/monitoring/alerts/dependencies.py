"""Defines the alerts about Redis, the ledger, limits, events and billing."""

from tools.monitoring.alerts.build import GATEWAY, OF_GATEWAY, alert_of_one_series
from tools.monitoring.promql import grown
from tools.monitoring.rule import Alert, Case, Group, Series

_LOOKUPS = "sluicegate_cache_lookups_total"
_HITS = (
    f'sum by (tier) (rate({_LOOKUPS}{{result="hit"}}[30m]))'
    f" / (sum by (tier) (rate({_LOOKUPS}[30m])) > 1)"
)
_WAITING = "sluicegate_stream_lag_events"
"""Of shippers: a billing worker on a machine of its own has no metrics page, nor one that ended."""
_YESTERDAY = _HITS.replace("[30m]", "[30m] offset 1d")

DEPENDENCIES = Group(
    "sluicegate-dependencies",
    (
        alert_of_one_series(
            "StateRedisDown",
            'min by (instance) (sluicegate_dependency_up{dependency="state_redis"}) == 0',
            lasts="30s",
            severity="page",
            summary="{{ $labels.instance }} does not reach the state Redis",
            description="Requests are answered: limits are decided locally, events wait on disk,"
            " documents do not change.",
            series=f'sluicegate_dependency_up{{{GATEWAY}, dependency="state_redis"}}',
            fires="1 0x30",
            quiet="1x30",
            labels={"instance": "gateway-1:8081"},
        ),
        alert_of_one_series(
            "CacheRedisDown",
            'min by (instance) (sluicegate_dependency_up{dependency="cache_redis"}) == 0',
            lasts="30s",
            severity="ticket",
            summary="{{ $labels.instance }} does not reach the cache's Redis",
            description="Look-ups in Redis are misses: answers are right, backends work more.",
            series=f'sluicegate_dependency_up{{{GATEWAY}, dependency="cache_redis"}}',
            fires="1 0x30",
            quiet="1x30",
            labels={"instance": "gateway-1:8081"},
        ),
        alert_of_one_series(
            "LedgerDown",
            'min by (instance) (sluicegate_dependency_up{dependency="ledger"}) == 0',
            lasts="1m",
            severity="page",
            summary="{{ $labels.instance }} does not reach the ledger",
            description="Known keys work on; new keys, changes of limits and billing wait.",
            series=f'sluicegate_dependency_up{{{GATEWAY}, dependency="ledger"}}',
            fires="1 0x30",
            quiet="1x30",
            labels={"instance": "gateway-1:8081"},
        ),
        alert_of_one_series(
            "BreakerOpen",
            "max by (instance, dependency) (max_over_time(sluicegate_breaker_open[2m])) == 1",
            lasts="3m",
            severity="ticket",
            summary="{{ $labels.instance }} calls {{ $labels.dependency }} no more, because calls"
            " failed",
            description="The dependency is away or slower than its timeout.",
            series=f'sluicegate_breaker_open{{{GATEWAY}, dependency="cache_redis"}}',
            fires="0 1x30",
            quiet="0x17 1 0x12",
            labels={"instance": "gateway-1:8081", "dependency": "cache_redis"},
        ),
        alert_of_one_series(
            "ClockSkewed",
            "max by (instance, dependency) (sluicegate_clock_skew_seconds) > 2",
            lasts="1m",
            severity="page",
            summary="The clock of {{ $labels.instance }} differs from that of"
            " {{ $labels.dependency }}",
            description="Usage is billed in the wrong hour, and keys expire too early or too late.",
            series=f'sluicegate_clock_skew_seconds{{{GATEWAY}, dependency="state_redis"}}',
            fires="0 3600x30",
            quiet="0.1x10 5 0.1x19",
            labels={"instance": "gateway-1:8081", "dependency": "state_redis"},
        ),
        Alert(
            name="LimitsDecidedLocally",
            expr="sum by (instance) (rate(sluicegate_limit_local_decisions_total[2m]))"
            " / sum by (instance) (rate(sluicegate_limit_admissions_total[2m])) > 0.05"
            " and sum by (instance) (rate(sluicegate_limit_local_decisions_total[2m])) > 0.1",
            lasts="30s",
            severity="ticket",
            summary="{{ $labels.instance }} decides limits without Redis",
            description="Each worker admits a share of each limit by itself: tenants get less than"
            " they bought, or workers together more.",
            fires=Case(
                series=(
                    Series(f"sluicegate_limit_local_decisions_total{{{GATEWAY}}}", "0+30x30"),
                    Series(
                        f'sluicegate_limit_admissions_total{{{GATEWAY}, source="local_share"}}',
                        "0+30x30",
                    ),
                ),
                at="20m",
                labels={"instance": "gateway-1:8081"},
            ),
            quiet=Case(
                series=(
                    Series(f"sluicegate_limit_local_decisions_total{{{GATEWAY}}}", "0+1x30"),
                    Series(
                        f'sluicegate_limit_admissions_total{{{GATEWAY}, source="lease"}}',
                        "0+99x30",
                    ),
                ),
                at="20m",
            ),
        ),
        Alert(
            name="KeysRefused",
            expr='sum (rate(sluicegate_requests_total{status="401"}[2m]))'
            " / sum (rate(sluicegate_requests_total[2m])) > 0.3 and"
            ' sum (rate(sluicegate_requests_total{status="401"}[2m])) > 0.2',
            lasts="1m",
            severity="page",
            summary="More than three of ten requests have a key that is refused",
            description="A caller has a wrong key, or workers lost keys that were valid.",
            fires=Case(
                series=(
                    Series(
                        f'sluicegate_requests_total{{{GATEWAY}, route="/v1/classify",'
                        ' model="", status="401"}',
                        "0+50x10",
                    ),
                    Series(
                        f'sluicegate_requests_total{{{GATEWAY}, route="/v1/classify",'
                        ' model="sentiment", status="200"}',
                        "0+50x10",
                    ),
                ),
                at="5m",
            ),
            quiet=Case(
                series=(
                    Series(
                        f'sluicegate_requests_total{{{GATEWAY}, route="/v1/classify",'
                        ' model="", status="401"}',
                        "0+20x10",
                    ),
                    Series(
                        f'sluicegate_requests_total{{{GATEWAY}, route="/v1/classify",'
                        ' model="sentiment", status="200"}',
                        "0+50x10",
                    ),
                ),
                at="5m",
            ),
        ),
        Alert(
            name="LimitRefusesMany",
            expr='sum by (policy) (rate(sluicegate_limit_decisions_total{decision="refused"}[2m]))'
            " / on () group_left () sum (rate(sluicegate_limit_decisions_total"
            '{decision!="shadow_refused"}[2m])) > 0.2 and sum by (policy)'
            ' (rate(sluicegate_limit_decisions_total{decision="refused"}[2m])) > 0.2',
            lasts="1m",
            severity="ticket",
            summary="The limit {{ $labels.policy }} refuses more than a fifth of all requests",
            description="One tenant sends far more than its limit: others are not touched.",
            fires=Case(
                series=(
                    Series(
                        f'sluicegate_limit_decisions_total{{{GATEWAY}, policy="minute",'
                        ' decision="refused"}',
                        "0+50x10",
                    ),
                    Series(
                        f'sluicegate_limit_decisions_total{{{GATEWAY}, policy="",'
                        ' decision="allowed"}',
                        "0+50x10",
                    ),
                ),
                at="5m",
                labels={"policy": "minute"},
            ),
            quiet=Case(
                series=(
                    Series(
                        f'sluicegate_limit_decisions_total{{{GATEWAY}, policy="minute",'
                        ' decision="refused"}',
                        "0+5x10",
                    ),
                    Series(
                        f'sluicegate_limit_decisions_total{{{GATEWAY}, policy="",'
                        ' decision="allowed"}',
                        "0+95x10",
                    ),
                ),
                at="5m",
            ),
        ),
        Alert(
            name="HitRatioFell",
            expr=f"{_HITS} < 0.5 * ({_YESTERDAY})",
            lasts="10m",
            severity="ticket",
            summary="The tier {{ $labels.tier }} finds less than half of what it found a day ago",
            description="Backends have more work. A tier was lost, purged, or is too small.",
            fires=Case(
                series=(
                    Series(
                        f'{_LOOKUPS}{{{GATEWAY}, tier="redis", result="hit"}}',
                        "0+800x1500 1200000x100",
                    ),
                    Series(
                        f'{_LOOKUPS}{{{GATEWAY}, tier="redis", result="miss"}}',
                        "0+200x1500 300000+1000x100",
                    ),
                ),
                at="1560m",
                labels={"tier": "redis"},
            ),
            quiet=Case(
                series=(
                    Series(f'{_LOOKUPS}{{{GATEWAY}, tier="redis", result="hit"}}', "0+800x1600"),
                    Series(f'{_LOOKUPS}{{{GATEWAY}, tier="redis", result="miss"}}', "0+200x1600"),
                ),
                at="1560m",
            ),
        ),
        alert_of_one_series(
            "BudgetRefusals",
            'sum by (route) (increase(sluicegate_requests_total{status="402"}[10m])) > 10',
            severity="ticket",
            summary="Requests for {{ $labels.route }} are refused because a month's budget is"
            " used up",
            description="A tenant gets 402 until its budget is raised or the month ends.",
            series='sluicegate_requests_total{instance="gateway-1:8081", route="/v1/classify",'
            ' model="", status="402"}',
            fires="0+5x30",
            quiet="3x30",
            labels={"route": "/v1/classify"},
        ),
    ),
)

EVENTS = Group(
    "sluicegate-events",
    (
        alert_of_one_series(
            "EventLogNotWritable",
            "sluicegate_event_log_writable == 0",
            severity="page",
            summary="Workers of {{ $labels.instance }} cannot write usage events",
            description="Callers get `event_log_unavailable`: nothing is answered unbilled.",
            series=f"sluicegate_event_log_writable{{{GATEWAY}}}",
            fires="1 0x30",
            quiet="1x30",
            labels=OF_GATEWAY,
        ),
        alert_of_one_series(
            "EventLogNotSynced",
            "max by (instance) (sluicegate_event_log_unsynced_seconds) > 10",
            lasts="1m",
            severity="ticket",
            summary="Usage events of {{ $labels.instance }} do not reach its disk",
            description="A power cut would lose the usage since the last sync. Answers go on.",
            series=f"sluicegate_event_log_unsynced_seconds{{{GATEWAY}}}",
            fires="0 30+60x30",
            quiet="0 0 30 0x30",
            labels={"instance": "gateway-1:8081"},
        ),
        alert_of_one_series(
            "ShipperLags",
            "max by (instance) (sluicegate_shipper_lag_seconds) > 60",
            lasts="2m",
            severity="ticket",
            summary="Events of {{ $labels.instance }} are not put into the stream",
            description="Usage and budgets are late; events wait on the disk.",
            series=f"sluicegate_shipper_lag_seconds{{{GATEWAY}}}",
            fires="0 60+60x30",
            quiet="0 0 90 0x30",
            labels={"instance": "gateway-1:8081"},
        ),
        Alert(
            name="BillingLags",
            expr="max(sluicegate_billing_lag_seconds) > 300"
            f' or max({_WAITING}{{consumer="billing"}})'
            " / sum(rate(sluicegate_shipped_events_total[5m])) > 300",
            lasts="5m",
            severity="ticket",
            summary="Usage reaches the ledger minutes late",
            description="Invoices and budgets are late; nothing is lost.",
            fires=Case(
                series=(
                    Series(f'{_WAITING}{{{GATEWAY}, consumer="billing"}}', "0+60x30"),
                    Series(f"sluicegate_shipped_events_total{{{GATEWAY}}}", "0+60x30"),
                ),
                at="20m",
            ),
            quiet=Case(
                series=(
                    Series(
                        f'sluicegate_billing_lag_seconds{{{GATEWAY}, stream="0"}}', "0 400 0x30"
                    ),
                    Series(f'{_WAITING}{{{GATEWAY}, consumer="billing"}}', "0+60x3 60x30"),
                    Series(f"sluicegate_shipped_events_total{{{GATEWAY}}}", "0+60x40"),
                ),
                at="20m",
            ),
        ),
        alert_of_one_series(
            "StreamGrows",
            "max by (consumer) (sluicegate_stream_lag_events) > 100000"
            " and max by (consumer) (delta(sluicegate_stream_lag_events[10m])) > 0",
            lasts="5m",
            severity="ticket",
            summary="The consumer {{ $labels.consumer }} reads the stream more slowly than it"
            " grows",
            description="At its bound the stream takes no more, and events wait on the disks.",
            series=f'sluicegate_stream_lag_events{{{GATEWAY}, consumer="billing"}}',
            fires="100000+1000x30",
            quiet="200000-5000x30",
            labels={"consumer": "billing"},
        ),
        alert_of_one_series(
            "WorkerFailsRepeatedly",
            "max by (instance, part) (sluicegate_consecutive_failures) > 5",
            lasts="1m",
            severity="ticket",
            summary="The {{ $labels.part }} of {{ $labels.instance }} fails again and again",
            description="Events wait. Its log says why.",
            series=f'sluicegate_consecutive_failures{{{GATEWAY}, part="billing"}}',
            fires="0+1x30",
            quiet="0 1 2 0x30",
            labels={"instance": "gateway-1:8081", "part": "billing"},
        ),
        alert_of_one_series(
            "DeadLetters",
            "max by (stream) (sluicegate_dead_letters) > 0",
            severity="ticket",
            summary="Events of stream {{ $labels.stream }} could not be counted",
            description="They wait for an operator; what they bill is missing in invoices.",
            series=f'sluicegate_dead_letters{{{GATEWAY}, stream="0"}}',
            fires="0 2x30",
            quiet="0x30",
            labels={"stream": "0"},
        ),
        alert_of_one_series(
            "EventsDropped",
            f"{grown('sluicegate_events_dropped_total', 'stream', '15m')} > 0",
            severity="ticket",
            summary="Events of {{ $labels.stream }} were lost",
            description="`usage`: a crash of a machine destroyed them. `request_log`: there was no"
            " room.",
            series=f'sluicegate_events_dropped_total{{{GATEWAY}, stream="request_log"}}',
            fires="_x10 3x20",
            quiet="3x30",
            labels={"stream": "request_log"},
        ),
    ),
)
