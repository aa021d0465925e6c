"""Checks the names and labels of a PromQL expression against the declared metrics."""

import re
from functools import cache

from sluicegate.wire.metric_declaration import MetricKind
from tools.monitoring.rules import groups
from tools.reference.metrics_page import declared_metrics

TARGET = frozenset({"instance", "job"})
"""Labels that Prometheus gives to what it scrapes."""
_NAME = re.compile(r"\b(?:model:)?sluicegate_[a-z0-9_]+(?::[a-z0-9_]+)?")
_MATCHERS = re.compile(r"\b(sluicegate_[a-z0-9_]+)\{([^}]*)\}")
_ALERT = frozenset({"alertname", "alertstate", "severity"})


@cache
def labels_by_name() -> dict[str, frozenset[str]]:
    """Return the labels of every series that a scrape or a recording rule makes."""
    known: dict[str, frozenset[str]] = {}
    for metric in declared_metrics().values():
        labels = frozenset(metric.labels) | TARGET
        if metric.kind is MetricKind.HISTOGRAM:
            known |= {f"{metric.name}_{end}": labels for end in ("count", "sum")}
            known[f"{metric.name}_bucket"] = labels | {"le"}
        else:
            known[metric.name] = labels
    rules = [rule for group in groups() for rule in group.rules]
    return known | {rule.record: frozenset({"model"}) for rule in rules if rule.record}


def check_query(expr: str) -> None:
    """Fail where the expression names a metric that is not declared, or a label that it lacks."""
    known = labels_by_name()
    names = set(_NAME.findall(expr))
    assert names <= set(known), names - set(known)
    for name, matchers in _MATCHERS.findall(expr):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert asked <= known[name], f"{name} lacks {asked - known[name]}"
    possible = frozenset[str]().union(*(known[name] for name in names))
    if "ALERTS" in expr:
        possible = frozenset().union(*known.values()) | _ALERT
    for listed in re.findall(r"\b(?:by|on) \(([^)]*)\)", expr):
        labels = {label.strip() for label in listed.split(",")} - {""}
        assert labels <= possible, f"nothing in {expr} has {labels - possible}"
