"""Declares child processes as values, and the order in which roles stop."""

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum

import msgspec


class ProcessRole(StrEnum):
    """What a process does; the `role` of `processes.json`."""

    SUPERVISOR = "supervisor"
    VALKEY_CACHE = "valkey-cache"
    VALKEY_STATE = "valkey-state"
    BACKEND = "backend"
    BILLING = "billing"
    REQUEST_LOG = "request-log"
    SHIPPER = "shipper"
    ADMIN = "admin"
    BATCHES = "batches"
    GATEWAY = "gateway"


# Producers of work stop before its consumers: gateways finish their requests while backends still
# answer, and their events are shipped and billed while Valkey still runs.
STOP_ORDER: tuple[tuple[ProcessRole, ...], ...] = (
    (ProcessRole.GATEWAY, ProcessRole.BATCHES),
    (ProcessRole.ADMIN,),
    (ProcessRole.SHIPPER,),
    (ProcessRole.REQUEST_LOG, ProcessRole.BILLING),
    (ProcessRole.BACKEND,),
    (ProcessRole.VALKEY_CACHE, ProcessRole.VALKEY_STATE),
)


# Returns why a process is not ready, nothing when it is, in about a second; never raises.
Probe = Callable[[], Awaitable[str]]


async def is_started() -> str:
    """Probe nothing: the process is ready when it runs."""
    return ""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A child to run. `name` is unique and names its log; `address` is where it listens."""

    name: str
    role: ProcessRole
    argv: tuple[str, ...]
    probe: Probe = is_started
    region: str = ""
    index: int = 0
    address: str = ""
    device: str = ""
    """The UUID of the GPU that it uses, of which nobody else may be measured meanwhile."""
    environment: Mapping[str, str] = {}
    listener: socket.socket | None = None
    """A socket of the supervisor's that the child inherits, and its successor after it.

    Such a child serves HTTP; at SIGUSR1 it reports that it is not ready, and serves on."""
    siblings: tuple[socket.socket, ...] = ()
    """Sockets of others on the same port; the child accepts there what those do not."""
    stop_within: float = 15.0
    replace_within: float = 20.0
    ready_within: float = 60.0
    ready_once_heard_within: float = 60.0
    """Seconds from its first sign of life, which comes when models are loaded, to readiness."""
    heartbeat_variable: str = ""
    """The variable with the descriptor for heartbeats; empty: the child sends none."""
    sign_of_life: Callable[[], Awaitable[bool]] | None = None
    """Calls a child that sends no heartbeats; false, and no exception, without an answer."""
    silent_within: float = 0.0
    """Seconds of silence after which the child is replaced; 0: never."""
    memory_bytes: int = 0
    """Resident memory above which it is replaced; 0: no bound."""
    gives_way: bool = False
    """Runs at a low priority (`gateway.supervisor.priority`), until it is stopped."""

    @property
    def is_heard(self) -> bool:
        """Whether the child sends heartbeats or can be called."""
        return bool(self.heartbeat_variable) or self.sign_of_life is not None


def stop_groups(specs: Iterable[ProcessSpec]) -> list[list[ProcessSpec]]:
    """Return `specs` in the groups that stop together, the first to stop first."""
    specs = list(specs)
    groups = [[spec for spec in specs if spec.role in roles] for roles in STOP_ORDER]
    return [group for group in groups if group]
