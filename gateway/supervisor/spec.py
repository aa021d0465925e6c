"""What a child process is, as values; and the order in which roles stop."""

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
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
    """A socket of the supervisor's that the child inherits, and its successor after it.

    Such a child serves HTTP; at SIGUSR1 it says that it is not ready, and serves on."""
    siblings: tuple[socket.socket, ...] = ()
    """Sockets of others on the same port; the child accepts there what those do not."""
    stop_within: float = 15.0
    replace_within: float = 20.0
    ready_within: float = 60.0
    heartbeat_variable: str = ""
    """Tells the child what to write heartbeats to, where its program does that."""
    sign_of_life: Callable[[], Awaitable[bool]] | None = None
    """Asks a child that writes none; false, and no exception, where it does not answer."""
    silent_within: float = 0.0
    """Seconds without a sign of life after which the child is replaced; 0: never."""
    memory_bytes: int = 0
    """Resident memory above which it is replaced; 0: no bound."""
    gives_way: bool = False
    """Runs after everybody else (`gateway.supervisor.priority`), until it is told to stop."""

    @property
    def is_heard(self) -> bool:
        """Whether there are signs of life to wait for."""
        return bool(self.heartbeat_variable) or self.sign_of_life is not None


def stop_groups(specs: Iterable[ProcessSpec]) -> list[list[ProcessSpec]]:
    """Return `specs` in the groups that stop together, the first to stop first."""
    specs = list(specs)
    groups = [[spec for spec in specs if spec.role in roles] for roles in STOP_ORDER]
    return [group for group in groups if group]
