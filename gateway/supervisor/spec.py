"""What a child process is, as values; and the order in which roles stop."""

import socket
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec


class Role(StrEnum):
    """What a process does; the `role` of `processes.json`."""

    SUPERVISOR = "supervisor"
    VALKEY_CACHE = "valkey-cache"
    VALKEY_STATE = "valkey-state"
    BACKEND = "backend"
    BILLING = "billing"
    REQUEST_LOG = "request-log"
    SHIPPER = "shipper"
    ADMIN = "admin"
    GATEWAY = "gateway"


# Whoever makes work stops before whoever takes it: gateways finish their requests while backends
# still answer, and what they recorded is shipped and billed while Valkey still runs.
STOP_ORDER: tuple[tuple[Role, ...], ...] = (
    (Role.GATEWAY,),
    (Role.ADMIN,),
    (Role.SHIPPER,),
    (Role.REQUEST_LOG, Role.BILLING),
    (Role.BACKEND,),
    (Role.VALKEY_CACHE, Role.VALKEY_STATE),
)


class Probe(Protocol):
    """Asks a process whether it is ready; never raises, and answers within about a second."""

    async def missing(self) -> str:
        """Return what the process still waits for; nothing when it is ready."""
        ...


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A child to run. `name` is unique and names its log; `address` is where it listens."""

    name: str
    role: Role
    argv: tuple[str, ...]
    probe: Probe
    region: str = ""
    index: int = 0
    address: str = ""
    environment: Mapping[str, str] = {}
    listener: socket.socket | None = None
    """A socket of the supervisor's that the child inherits, and its successor after it."""
    stop_within: float = 15.0
    ready_within: float = 60.0


def stop_groups(specs: Iterable[ProcessSpec]) -> list[list[ProcessSpec]]:
    """Return `specs` in the groups that stop together, the first to stop first."""
    specs = list(specs)
    groups = [[spec for spec in specs if spec.role in roles] for roles in STOP_ORDER]
    return [group for group in groups if group]
