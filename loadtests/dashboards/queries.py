"""Runs the query of every panel and rule against a Prometheus."""

import re
from collections.abc import Iterator

import msgspec

from testing.prometheus import Prometheus
from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.grafana import Dashboard
from tools.monitoring.rule import Alert
from tools.monitoring.rules import GROUPS


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A query, where it is from, how many series it gave, and why it failed if it did."""

    origin: str
    series: int = 0
    must_have_data: bool = False
    error: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it failed, or gave nothing where a sound system gives something."""
        return bool(self.error) or (self.must_have_data and not self.series)


def ask_all(prometheus: Prometheus, *, interval: str) -> list[Asked]:
    """Return what became of every query; `interval` stands for Grafana's rate interval."""
    return [*_panels(prometheus, interval), *_rules(prometheus)]


def _panels(prometheus: Prometheus, interval: str) -> Iterator[Asked]:
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels():
            for query in panel.queries:
                yield _ask(
                    prometheus,
                    filled_in(dashboard, query.expr, interval),
                    origin=f"{dashboard.uid}: {panel.title}: {query.legend}",
                    must_have_data=not panel.may_be_empty,
                )


def _rules(prometheus: Prometheus) -> Iterator[Asked]:
    for group in GROUPS:
        for rule in group.rules:
            is_alert = isinstance(rule, Alert)
            name = rule.name if isinstance(rule, Alert) else rule.record
            yield _ask(
                prometheus,
                rule.expr,
                origin=f"{group.name}: {name}",
                must_have_data=not is_alert,
            )


def _ask(prometheus: Prometheus, expr: str, *, origin: str, must_have_data: bool) -> Asked:
    try:
        found = prometheus.query(expr)
    except ValueError as error:
        return Asked(origin=origin, error=f"{error} in {expr}")
    return Asked(origin=origin, series=len(found), must_have_data=must_have_data)


def filled_in(dashboard: Dashboard, expr: str, interval: str) -> str:
    """Return a panel's query with what Grafana puts in: all values, the defaults of numbers."""
    values = {each.name: each.default or ".*" for each in dashboard.variables}
    values["__rate_interval"] = interval
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)
