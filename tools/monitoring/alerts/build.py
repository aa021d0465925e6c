"""Builds the alerts whose tests are one series that is too high and one that is not."""

from tools.monitoring.rule import Alert, Case, Series, Severity

GATEWAY = 'job="gateway", instance="gateway-1:8081"'
OF_GATEWAY = {"job": "gateway", "instance": "gateway-1:8081"}


def alert_of_one_series(
    name: str,
    expr: str,
    *,
    severity: Severity,
    summary: str,
    description: str,
    lasts: str = "0m",
    series: str,
    fires: str,
    quiet: str,
    at: str = "20m",
    labels: dict[str, str],
) -> Alert:
    """Return an alert that fires with the values `fires` of a series, and not with `quiet`."""
    return Alert(
        name=name,
        expr=expr,
        severity=severity,
        summary=summary,
        description=description,
        lasts=lasts,
        fires=Case(series=(Series(series, fires),), at=at, labels=labels),
        quiet=Case(series=(Series(series, quiet),), at=at),
    )
