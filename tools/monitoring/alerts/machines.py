"""Defines the alerts about processes, machines, disks, certificates and what is scraped."""

from tools.monitoring.alerts.build import GATEWAY, alert_of_one_series
from tools.monitoring.promql import grown
from tools.monitoring.rule import Alert, Case, Group, Series

_EXPIRY = "sluicegate_tls_certificate_expiry_timestamp_seconds"
_DAY = 86_400
_FREE = "sluicegate_data_disk_free_bytes"
_WORKERS = 'sluicegate_process_resident_memory_bytes{role="gateway"}'
_INSTANCE = {"instance": "gateway-1:8081"}
_OF_WORKERS = 'role="gateway"'


def _late(histogram: str, *where: str) -> str:
    """Return an expression for more than one of a hundred timers that were late."""
    in_time = ", ".join([*where, 'le="0.1"'])
    every = f"{{{', '.join(where)}}}" if where else ""
    return (
        f"1 - sum by (instance) (rate({histogram}_bucket{{{in_time}}}[5m]))"
        f" / sum by (instance) (rate({histogram}_count{every}[5m])) > 0.01"
    )


def _lag(
    histogram: str, *, fast: int, labels: dict[str, str] | None = None, where: str = ""
) -> Case:
    """Return a case of a hundred timers a minute, `fast` of them within a tenth of a second."""
    of = f"{GATEWAY}, {where}" if where else GATEWAY
    counts = (
        Series(f'{histogram}_bucket{{{of}, le="0.1"}}', f"0+{fast}x30"),
        Series(f"{histogram}_count{{{of}}}", "0+100x30"),
    )
    return Case(series=counts, at="20m", labels=labels or {})


MACHINES = Group(
    "sluicegate-machines",
    (
        alert_of_one_series(
            "GatewayDown",
            'up{job=~"(.+/)?gateway"} == 0',
            lasts="1m",
            severity="page",
            summary="The operators' listener of {{ $labels.instance }} does not answer Prometheus",
            description="The machine or its supervisor is away, or the metrics key is wrong.",
            series='up{job="sluicegate/gateway", instance="gateway-1:8081"}',
            fires="1 0x30",
            quiet="1 0 1x30",
            labels={"job": "sluicegate/gateway", "instance": "gateway-1:8081"},
        ),
        Alert(
            name="WorkersDown",
            expr=f"group by (instance) (sluicegate_build_info)"
            f" and group by (instance) (max_over_time({_WORKERS}[1d]))"
            f" unless group by (instance) ({_WORKERS})",
            lasts="1m",
            severity="page",
            summary="No worker of {{ $labels.instance }} runs",
            description="It answers operators and Prometheus, and no caller.",
            fires=Case(
                series=(
                    Series(f'sluicegate_build_info{{{GATEWAY}, version="0.1.0"}}', "1x20"),
                    Series(
                        f'sluicegate_process_resident_memory_bytes{{{GATEWAY}, role="gateway"}}',
                        "9x5 stale",
                    ),
                    Series(
                        f'sluicegate_process_resident_memory_bytes{{{GATEWAY}, role="admin"}}',
                        "9x20",
                    ),
                ),
                at="10m",
                labels=_INSTANCE,
            ),
            quiet=Case(
                series=(
                    Series(f'sluicegate_build_info{{{GATEWAY}, version="0.1.0"}}', "1x20"),
                    Series(
                        f'sluicegate_process_resident_memory_bytes{{{GATEWAY}, role="gateway"}}',
                        "9x20",
                    ),
                    Series('sluicegate_build_info{instance="admin:8081", version="0.1.0"}', "1x20"),
                ),
                at="10m",
            ),
        ),
        Alert(
            name="MetricsAbsent",
            expr="absent(sluicegate_build_info)",
            lasts="5m",
            severity="page",
            summary="Prometheus has no metrics of any gateway",
            description="Nothing else can fire: mend the scraping first.",
            fires=Case(series=(Series('up{job="gateway"}', "0x20"),), at="10m"),
            quiet=Case(
                series=(Series(f'sluicegate_build_info{{{GATEWAY}, version="0.1.0"}}', "1x20"),),
                at="10m",
            ),
        ),
        alert_of_one_series(
            "BackendUnreachable",
            'up{job=~"(.+/)?backend"} == 0',
            lasts="2m",
            severity="ticket",
            summary="Backend {{ $labels.instance }} does not answer Prometheus",
            description="Its process or machine is away; see whether gateways reach it.",
            series='up{job="backend", instance="eu-0:8100"}',
            fires="1 0x30",
            quiet="1 0 1x30",
            labels={"job": "backend", "instance": "eu-0:8100"},
        ),
        alert_of_one_series(
            "DataDiskFull",
            f"min by (instance) ({_FREE}) < 1e8",
            severity="page",
            summary="The disk of the data directory of {{ $labels.instance }} is full",
            description="What is on it takes no writes: usage events, and a state Redis beside"
            " them.",
            series=f"sluicegate_data_disk_free_bytes{{{GATEWAY}}}",
            fires="5000000000x15 0x30",
            quiet="200000000x60",
            labels={"instance": "gateway-1:8081"},
        ),
        alert_of_one_series(
            "DataDiskNearlyFull",
            f"min by (instance) ({_FREE}) < 2e9 or"
            f" min by (instance) (predict_linear({_FREE}[1h], 4 * 3600)"
            f" and {_FREE} offset 45m) < 0",
            lasts="30s",
            severity="page",
            summary="The disk of the data directory of {{ $labels.instance }} is nearly full, or"
            " will be within four hours",
            description="When it is full, requests are refused: none is answered unbilled.",
            series=f"sluicegate_data_disk_free_bytes{{{GATEWAY}}}",
            at="70m",
            fires="100000000000-500000000x80",
            quiet="60000000000-1000000x80",
            labels={"instance": "gateway-1:8081"},
        ),
        Alert(
            name="EventLoopLags",
            expr=_late("sluicegate_event_loop_lag_seconds", _OF_WORKERS),
            lasts="5m",
            severity="ticket",
            summary="Event loops of {{ $labels.instance }} are often late by a tenth of a second",
            description="Every request of a late worker waits. Add workers or machines.",
            fires=_lag(
                "sluicegate_event_loop_lag_seconds", fast=95, labels=_INSTANCE, where=_OF_WORKERS
            ),
            quiet=_lag("sluicegate_event_loop_lag_seconds", fast=0, where='role="billing"'),
        ),
        Alert(
            name="BackendEventLoopLags",
            expr=_late("sluicegate_backend_event_loop_lag_seconds"),
            lasts="5m",
            severity="ticket",
            summary="The event loop of backend {{ $labels.instance }} is often late by a tenth of"
            " a second",
            description="It accepts calls and answers probes late. It needs processor time.",
            fires=_lag("sluicegate_backend_event_loop_lag_seconds", fast=95, labels=_INSTANCE),
            quiet=_lag("sluicegate_backend_event_loop_lag_seconds", fast=100),
        ),
        alert_of_one_series(
            "ProcessesRestart",
            f"{grown('sluicegate_process_restarts_total', 'instance, role, reason', '15m')} > 2",
            severity="ticket",
            summary="{{ $labels.role }} of {{ $labels.instance }} is started again and again:"
            " {{ $labels.reason }}",
            description="Requests that such a process has at that moment fail.",
            series="sluicegate_process_restarts_total"
            f'{{{GATEWAY}, role="gateway", reason="ended"}}',
            fires="0+1x30",
            quiet="0x10 1x20",
            labels={"instance": "gateway-1:8081", "role": "gateway", "reason": "ended"},
        ),
        alert_of_one_series(
            "CertificateExpires",
            f"min by (instance, listener) ({_EXPIRY}) - time() < 14 * {_DAY}"
            f" and min by (instance, listener) ({_EXPIRY}) > 0",
            severity="ticket",
            summary="The certificate of {{ $labels.listener }} on {{ $labels.instance }} expires"
            " within 14 days",
            description="Then every client refuses the connection. Renew it.",
            series=f'{_EXPIRY}{{{GATEWAY}, listener="customers"}}',
            fires=f"{13 * _DAY}x30",
            quiet=f"{15 * _DAY}x30",
            labels={"instance": "gateway-1:8081", "listener": "customers"},
        ),
        alert_of_one_series(
            "CertificateUnusable",
            "max by (instance, listener) (sluicegate_tls_certificate_unusable) == 1",
            severity="ticket",
            summary="The new certificate of {{ $labels.listener }} on {{ $labels.instance }} cannot"
            " be used",
            description="The one before is served until it expires.",
            series=f'sluicegate_tls_certificate_unusable{{{GATEWAY}, listener="customers"}}',
            fires="0 1x30",
            quiet="0x30",
            labels={"instance": "gateway-1:8081", "listener": "customers"},
        ),
        alert_of_one_series(
            "ConnectionsRefused",
            "sum by (instance, listener, reason)"
            ' (rate(sluicegate_refused_connections_total{reason=~"connections|address"}[5m])) > 1',
            lasts="2m",
            severity="ticket",
            summary="{{ $labels.instance }} refuses connections of {{ $labels.listener }}:"
            " {{ $labels.reason }}",
            description="`connections`: too many in all. `address`: one address opens too many.",
            series='sluicegate_refused_connections_total{instance="gateway-1:8081",'
            ' listener="customers", reason="connections"}',
            fires="0+120x30",
            quiet="0+6x30",
            labels={
                "instance": "gateway-1:8081",
                "listener": "customers",
                "reason": "connections",
            },
        ),
        alert_of_one_series(
            "ConfigReloadFails",
            "sum by (instance)"
            ' (increase(sluicegate_config_reloads_total{result="failed"}[15m])) > 0',
            severity="ticket",
            summary="A worker of {{ $labels.instance }} could not take a document",
            description="It serves by the document before.",
            series=f'sluicegate_config_reloads_total{{{GATEWAY}, result="failed"}}',
            fires="0x10 1x20",
            quiet="0x30",
            labels={"instance": "gateway-1:8081"},
        ),
        alert_of_one_series(
            "SpansLost",
            "sum by (instance)"
            ' (rate(sluicegate_trace_spans_total{outcome=~"failed|dropped"}[5m])) > 1',
            lasts="10m",
            severity="ticket",
            summary="{{ $labels.instance }} loses spans",
            description="Traces are incomplete; requests are not touched.",
            series=f'sluicegate_trace_spans_total{{{GATEWAY}, outcome="failed"}}',
            fires="0+120x30",
            quiet="0+6x30",
            labels={"instance": "gateway-1:8081"},
        ),
    ),
)
