"""Writes the dashboards, and the rules for the Prometheus operator: `python -m tools.monitoring`.

The sources are tools/monitoring/dashboards/*.yaml and deploy/prometheus-rules.yaml.
"""

from pathlib import Path

import yaml

from tools.monitoring.dashboards.every import DASHBOARDS
from tools.monitoring.files import DASHBOARD_FOLDER, OBJECT, RULES
from tools.monitoring.grafana import render


def generated() -> dict[Path, bytes]:
    """Return the contents of every generated file by its path."""
    rules = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "sluicegate"},
        "spec": yaml.safe_load(RULES.read_bytes()),
    }
    written = yaml.safe_dump(rules, sort_keys=False, width=10_000, allow_unicode=True)
    note = "# Written by `python -m tools.monitoring` from deploy/prometheus-rules.yaml.\n"
    dashboards = {DASHBOARD_FOLDER / f"{each.uid}.json": render(each) for each in DASHBOARDS}
    return dashboards | {OBJECT: (note + written).encode()}


if __name__ == "__main__":
    files = generated()
    for path in DASHBOARD_FOLDER.glob("*.json"):
        if path not in files:
            path.unlink()
    for path, content in files.items():
        path.write_bytes(content)
        print(path)
