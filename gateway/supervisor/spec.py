"""Declares specs of child processes, and the order in which roles stop."""

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum

import msgspec


class ProcessRole(StrEnum):
    """The role of a process, as in `processes.json`."""

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


# Producers stop before consumers: workers finish their requests while backends still run, and usage
# events are shipped and billed while Valkey still runs.
STOP_ORDER: tuple[tuple[ProcessRole, ...], ...] = (
    (ProcessRole.GATEWAY, ProcessRole.BATCHES),
    (ProcessRole.ADMIN,),
    (ProcessRole.SHIPPER,),
    (ProcessRole.REQUEST_LOG, ProcessRole.BILLING),
    (ProcessRole.BACKEND,),
    (ProcessRole.VALKEY_CACHE, ProcessRole.VALKEY_STATE),
)


# Returns within about a second why a process is not ready, or ""; never raises.
Probe = Callable[[], Awaitable[str]]


async def is_started() -> str:
    """Return "": the process is ready as soon as it runs."""
    return ""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a child. `name` is unique and names its log; `address` is where it listens."""

    name: str
    role: ProcessRole
    argv: tuple[str, ...]
    probe: Probe = is_started
    region: str = ""
    index: int = 0
    address: str = ""
    device: str = ""
    """The UUID of the backend's GPU. While the backend measures its models, no other backend may
    use this GPU."""
    environment: Mapping[str, str] = {}
    listener: socket.socket | None = None
    """A socket of the supervisor that the child and its successors inherit.

    Such a child serves HTTP. At SIGUSR1 it reports that it is not ready, and continues to serve.
    """
    siblings: tuple[socket.socket, ...] = ()
    """Sockets of other workers on the same port. The child accepts connections that wait there
    because their worker does not accept them."""
    stop_within: float = 15.0
    replace_within: float = 20.0
    ready_within: float = 120.0
    ready_after_response_within: float = 60.0
    """Seconds from the child's first sign of life (its models are loaded) until it is ready."""
    heartbeat_variable: str = ""
    """The environment variable with the descriptor for heartbeats; empty: the child sends none."""
    sign_of_life: Callable[[], Awaitable[bool]] | None = None
    """Returns whether a child that sends no heartbeats responds; never raises."""
    silent_within: float = 0.0
    """Seconds of silence after which the child is replaced; 0: never."""
    memory_bytes: int = 0
    """Resident memory above which the child is replaced; 0: no limit."""
    gives_way: bool = False
    """Whether the child has a low priority (`gateway.supervisor.priority`) until it is stopped."""

    @property
    def is_monitored(self) -> bool:
        """Whether the child sends heartbeats or responds to calls."""
        return bool(self.heartbeat_variable) or self.sign_of_life is not None


def stop_groups(specs: Iterable[ProcessSpec]) -> list[list[ProcessSpec]]:
    """Return `specs` in groups that stop together, in the order of stopping."""
    specs = list(specs)
    groups = [[spec for spec in specs if spec.role in roles] for roles in STOP_ORDER]
    return [group for group in groups if group]
