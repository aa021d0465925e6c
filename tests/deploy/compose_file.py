"""Reads compose.yaml for tests."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
GATEWAYS = ["gateway-1", "gateway-2"]
STATE = ["redis-state", "redis-state-replica"]
SENTINELS = ["sentinel-0", "sentinel-1", "sentinel-2"]
BACKENDS = [name for name in OURS if name.startswith("backend-")]


def environment(name: str) -> dict[str, str]:
    """Return what a service is told, with a value in the place of each secret."""
    told = SERVICES[name].get("environment", {})
    return {key: re.sub(r"\$\{[^}]*\}", "x" * 16, str(value)) for key, value in told.items()}


def mounts(name: str) -> list[list[str]]:
    return [volume.split(":") for volume in SERVICES[name].get("volumes", [])]
