"""Reads the dashboards from the YAML files beside this module. Each file has one dashboard."""

from pathlib import Path

import msgspec

from tools.monitoring.grafana import Dashboard


def _read(path: Path) -> Dashboard:
    dashboard = msgspec.yaml.decode(path.read_bytes(), type=Dashboard)
    return msgspec.structs.replace(dashboard, uid=path.stem)


DASHBOARDS = tuple(map(_read, sorted(Path(__file__).parent.glob("*.yaml"))))
