"""Says where the files of Prometheus, Alertmanager and Grafana are."""

from pathlib import Path

_DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD_FOLDER = _DEPLOY / "grafana/dashboards"
RULES = _DEPLOY / "prometheus-rules.yaml"
ALERTMANAGER = _DEPLOY / "alertmanager.yaml"
OBJECT = _DEPLOY / "kubernetes/components/monitoring/rules.yaml"
"""The Prometheus operator's object with the rules of `RULES`."""
