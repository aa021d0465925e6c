"""Says which files are generated, and what is in them."""

from pathlib import Path

from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.grafana import render
from tools.monitoring.inhibitions import alertmanager
from tools.monitoring.rules import RUNBOOKS, prometheus_rule, rule_file

_DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD_FOLDER = _DEPLOY / "grafana/dashboards"
RULES = _DEPLOY / "prometheus-rules.yaml"
ALERTMANAGER = _DEPLOY / "alertmanager.yaml"
OBJECT = _DEPLOY / "kubernetes/components/monitoring/rules.yaml"


def generated(runbooks: str = RUNBOOKS) -> dict[Path, bytes]:
    """Return the contents of every generated file by its path.

    `runbooks` is the address of an alert's page, with `{alert}` for its name.
    """
    dashboards = {DASHBOARD_FOLDER / f"{each.uid}.json": render(each) for each in DASHBOARDS}
    return dashboards | {
        RULES: rule_file(runbooks),
        OBJECT: prometheus_rule(runbooks),
        ALERTMANAGER: alertmanager(),
    }
