"""Runs the query of every panel and rule against a Prometheus."""

import re
from collections.abc import Iterator

from testing.prometheus import Prometheus
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.grafana import Dashboard
from tools.monitoring.rules import groups


def wrong_queries(prometheus: Prometheus, *, interval: str) -> list[str]:
    """Ask every query; return those that fail, or give nothing where a sound system gives data.

    `interval` stands for Grafana's rate interval.
    """
    queries = [*_queries(interval)]
    found = [(origin, needs_data, *_ask(prometheus, q)) for origin, q, needs_data in queries]
    print(f"{len(queries)} queries, {sum(series > 0 for _, _, series, _ in found)} with data")
    return [
        f"{origin}: {error or 'no data'}"
        for origin, needs_data, series, error in found
        if error or (needs_data and not series)
    ]


def _queries(interval: str) -> Iterator[tuple[str, str, bool]]:
    """Yield where each query is from, its text, and whether it must give data."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels():
            for query in panel.queries:
                text = filled_in(dashboard, query.expr, interval)
                yield f"{dashboard.uid}: {panel.title}", text, not panel.may_be_empty
    for group in groups():
        for rule in group.rules:
            yield f"{group.name}: {rule.name}", rule.expr, bool(rule.record)


def _ask(prometheus: Prometheus, query: str) -> tuple[int, str]:
    """Return how many series there are, and why the query failed if it did."""
    try:
        return len(prometheus.query(query)), ""
    except ValueError as error:
        return 0, f"{error} in {query}"


def filled_in(dashboard: Dashboard, expr: str, interval: str) -> str:
    """Return a panel's query with what Grafana puts in: all values, the defaults of numbers."""
    values = {each.name: each.default or ".*" for each in dashboard.variables}
    values["__rate_interval"] = interval
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)
