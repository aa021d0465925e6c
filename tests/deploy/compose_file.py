"""Reads compose.yaml and its overrides for tests."""

import re
from typing import Any

from testing.compose_files import OBSERVED, compose_paths, merged

EVERYTHING = (*OBSERVED, "gpu", "ha-gpu")
PATHS = compose_paths((*EVERYTHING, "tls", "ha-tls"))
COMPOSE = merged(EVERYTHING)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
GATEWAYS = ["gateway-1", "gateway-2"]
STATE = ["redis-state", "redis-state-replica"]
SENTINELS = ["sentinel-0", "sentinel-1", "sentinel-2"]
BACKENDS = [name for name in OURS if name.startswith("backend-")]


def environment(name: str) -> dict[str, str]:
    """Return what a service is told, with a value in the place of each secret."""
    return environment_of(SERVICES[name])


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    """Return what a service is told; variables that may be absent are."""
    told = service.get("environment", {})
    return {key: _filled(str(value)) for key, value in told.items()}


def _filled(text: str) -> str:
    return re.sub(r"\$\{[^}]*\}", "x" * 16, re.sub(r"\$\{\w+:-\}", "", text))


def mounts(name: str) -> list[list[str]]:
    return [volume.split(":") for volume in SERVICES[name].get("volumes", [])]
