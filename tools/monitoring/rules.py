"""Renders rules for Prometheus and its operator, and the tests of alerts for promtool."""

from tools.monitoring.alerts.dependencies import DEPENDENCIES, EVENTS
from tools.monitoring.alerts.endpoints import ENDPOINTS
from tools.monitoring.alerts.machines import MACHINES
from tools.monitoring.objectives import ALERTS, recordings
from tools.monitoring.rule import Alert, Case, Group, Recording
from tools.monitoring.yaml_file import render

RUNBOOKS = "docs/runbooks/{alert}.md"
"""Where the page of an alert is: in a clone, until `--runbooks` names an address."""
GROUPS = (
    *recordings(),
    Group("sluicegate-objectives", ALERTS),
    ENDPOINTS,
    DEPENDENCIES,
    EVENTS,
    MACHINES,
)
_STEPS = {"30s": 30, "2m": 240, "30m": 10_000}
"""How often rules are evaluated in a test, by the most minutes that it lasts."""


def alerts() -> list[Alert]:
    """Return every alert, in the order of the groups."""
    return [rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert)]


def page_of(alert: Alert) -> str:
    """Return the name of the file of the alert's page."""
    return f"{alert.name}.md"


def rule_file(runbooks: str = RUNBOOKS) -> bytes:
    """Return the rules as a file of Prometheus; `{alert}` in `runbooks` becomes a name."""
    return render({"groups": [_group(group, runbooks) for group in GROUPS]})


def prometheus_rule(runbooks: str = RUNBOOKS) -> bytes:
    """Return the rules as an object of the Prometheus operator."""
    return render(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "sluicegate"},
            "spec": {"groups": [_group(group, runbooks) for group in GROUPS]},
        }
    )


def test_files() -> dict[str, bytes]:
    """Return files for `promtool test rules` by name: each alert fires, and does not fire.

    Series of `ALERTS` are what fires; they say nothing of annotations, which another test reads.
    Each alert is tested apart, with what its expression needs: promtool evaluates every rule of a
    file at each step of each test.
    """
    files = {}
    for alert in alerts():
        needed = [group for group in recordings() if _needs(alert, group)]
        rules = {"groups": [_group(group) for group in (*needed, Group("alert", (alert,)))]}
        files[f"{alert.name}.rules.yaml"] = render(rules)
        files[f"{alert.name}.test.yaml"] = render(
            {
                "rule_files": [f"{alert.name}.rules.yaml"],
                "evaluation_interval": _step(alert.fires),
                # Else in any order: an alert would see what was recorded a step before, or nothing.
                "group_eval_order": [*(group.name for group in needed), "alert"],
                "tests": [_test(alert, case) for case in (alert.fires, alert.quiet)],
            }
        )
    return files


def _needs(alert: Alert, group: Group) -> bool:
    names = [rule.record for rule in group.rules if isinstance(rule, Recording)]
    return any(name in alert.expr for name in names)


def _step(case: Case) -> str:
    minutes = int(case.at.removesuffix("m"))
    return next(step for step, most in _STEPS.items() if minutes <= most)


def _group(group: Group, runbooks: str = RUNBOOKS) -> dict[str, object]:
    return {"name": group.name, "rules": [_rule(rule, runbooks) for rule in group.rules]}


def _rule(rule: Recording | Alert, runbooks: str) -> dict[str, object]:
    if isinstance(rule, Recording):
        return {"record": rule.record, "expr": rule.expr}
    written: dict[str, object] = {"alert": rule.name, "expr": rule.expr}
    if rule.lasts != "0m":
        written["for"] = rule.lasts
    return written | {
        "labels": {"severity": rule.severity},
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook_url": runbooks.replace("{alert}", rule.name),
        },
    }


def _test(alert: Alert, case: Case) -> dict[str, object]:
    firing = case is alert.fires
    labels = {
        "alertname": alert.name,
        "alertstate": "firing",
        "severity": alert.severity,
        **case.labels,
    }
    matchers = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    samples = [{"labels": f"ALERTS{{{matchers}}}", "value": 1}] if firing else []
    return {
        "name": f"{alert.name} {'fires' if firing else 'does not fire'}",
        "interval": "1m",
        "input_series": [{"series": s.selector, "values": s.values} for s in case.series],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{alert.name}", alertstate="firing"}}',
                "eval_time": case.at,
                "exp_samples": samples,
            }
        ],
    }
