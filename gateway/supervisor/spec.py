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


# A process stops before the processes that it needs. Workers finish their requests while backends
# still run. Usage events are shipped and billed while Valkey still runs.
STOP_ORDER: tuple[tuple[ProcessRole, ...], ...] = (
    (ProcessRole.GATEWAY, ProcessRole.BATCHES),
    (ProcessRole.ADMIN,),
    (ProcessRole.SHIPPER,),
    (ProcessRole.REQUEST_LOG, ProcessRole.BILLING),
    (ProcessRole.BACKEND,),
    (ProcessRole.VALKEY_CACHE, ProcessRole.VALKEY_STATE),
)


# Returns why a process is not ready, or "" if it is ready. A probe takes about a second at most,
# and raises no errors.
Probe = Callable[[], Awaitable[str]]
NO_RESPONSE = "does not respond yet"
"""The result of a probe to which the process has not responded."""


async def is_started() -> str:
    """Return "" always. This is the probe of a process that is ready as soon as it is started."""
    return ""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a child process.

    The process listens on `address`. Its `name` is unique. The log of the process has the same
    name.
    """

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
    """A socket that the supervisor holds. The child and its successors inherit the socket.

    A child with a listener serves HTTP. After SIGUSR1, it reports that it is not ready, but
    continues to serve.
    """
    siblings: tuple[socket.socket, ...] = ()
    """Sockets of other workers on the same port. If another worker does not accept connections,
    they wait in the backlog of its socket. The child accepts them from there."""
    stop_within: float = 15.0
    replace_within: float = 20.0
    ready_within: float = 120.0
    ready_after_response_within: float = 60.0
    """Maximum seconds from the child's first heartbeat or response until the child is ready. A
    backend has loaded its models by its first response."""
    heartbeat_variable: str = ""
    """The environment variable that tells the child the descriptor for heartbeats. If it is empty,
    the child sends no heartbeats, and responses to its probe take their place."""
    silent_within: float = 0.0
    """Seconds of silence after which the child is replaced. If the value is 0, silence is
    ignored."""
    memory_bytes: int = 0
    """A child with more private memory than this is replaced. 0 means no limit."""
    gives_way: bool = False
    """Whether the child has a low priority (`gateway.supervisor.priority`) until it is stopped."""


def stop_groups(specs: Iterable[ProcessSpec]) -> list[list[ProcessSpec]]:
    """Return `specs` in groups, in the order in which the groups stop.

    The processes of a group stop together.
    """
    specs = list(specs)
    groups = [[spec for spec in specs if spec.role in roles] for roles in STOP_ORDER]
    return [group for group in groups if group]
