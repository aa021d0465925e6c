"""Plans all processes of `sluicegate up` before the first one starts.

The plan contains a spec of each process.
"""

import random
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import yaml

from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor import topology, valkey
from sluicegate.gateway.supervisor.data_directory import Credentials, DataDirectory
from sluicegate.gateway.supervisor.machine import Devices, available_memory
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec

_PLACED = "# Written by `sluicegate up`; replaces `regions` of the configuration.\n"
_ON_CPU = Devices()
_EVENT_ROLES = (
    ProcessRole.BILLING,
    ProcessRole.REQUEST_LOG,
    ProcessRole.SHIPPER,
    ProcessRole.BATCHES,
)


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of `sluicegate up` that are not settings.

    A key that is empty is generated. The demo models are served if `models` is `None`, or if
    `demo_models` is true.
    """

    workers: int
    regions: tuple[str, ...]
    models: Path | None = None
    demo_models: bool = False
    admin_key: str = ""
    demo_key: str = ""
    grpc_port: int | None = None
    """The port for gRPC. `None` means Triton's port, if gRPC is installed and this port is free."""
    cache_bytes: int = 256 * 1024 * 1024


class ProcessPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the specs of all processes in the order in which they start, and their settings.

    If the demo models are served, `demo_models` is the folder for them.
    """

    settings: Settings
    models: Path
    demo_models: Path | None
    valkeys: tuple[ProcessSpec, ...]
    backends: tuple[ProcessSpec, ...]
    others: tuple[ProcessSpec, ...]


def plan_up(
    settings: Settings,
    options: UpOptions,
    *,
    directory: DataDirectory,
    keys: Credentials,
    workers: Sequence[socket.socket],
    admin: socket.socket,
    devices: Devices = _ON_CPU,
) -> ProcessPlan:
    """Return the plan of all processes.

    The models run on `devices`. `workers` and `admin` are the sockets that the child processes
    inherit.

    Raises:
        CannotStart: Valkey is not available for this machine, or no port is free.
    """
    valkey_spec = partial(
        valkey.valkey_spec,
        program=valkey.find_program(),
        sockets=directory.sockets(),
        silent_within=settings.heartbeat_timeout,
    )
    cache_options = valkey.cache_options(options.cache_bytes)
    cache = valkey_spec(ProcessRole.VALKEY_CACHE, cache_options, data=directory.folder("cache"))
    state = valkey_spec(
        ProcessRole.VALKEY_STATE, valkey.STATE_OPTIONS, data=directory.folder("state")
    )
    own_models = (directory.root / "models").absolute()
    models = (options.models or own_models).absolute()
    demo = own_models if options.demo_models or options.models is None else None
    own = msgspec.structs.replace(
        directory.settings_of_children(settings),
        placement=directory.placement,
        cache_url=valkey.url(cache),
        state_url=valkey.url(state),
    )
    return ProcessPlan(
        settings=own,
        models=models,
        demo_models=demo,
        valkeys=(cache, state),
        backends=tuple(
            topology.backend_specs(
                options.regions,
                models=models,
                more_models=demo if demo != models else None,
                settings=own,
                choose=random.SystemRandom(),
                memory=available_memory(),
                devices=devices,
            )
        ),
        others=(
            *topology.event_specs(own, _EVENT_ROLES),
            topology.admin_spec(own, admin, keys.admin_key),
            *topology.worker_specs(own, workers),
        ),
    )


def write_placement(path: Path, backends: Iterable[ProcessSpec]) -> None:
    """Replace the file at `path` from which gateways read the regions and their backends."""
    pools: dict[str, list[dict[str, str]]] = {}
    for spec in backends:
        pools.setdefault(spec.region, []).append(
            {"id": f"{spec.region}-{spec.index}", "url": spec.address}
        )
    regions = [{"name": region, "pools": [{"backends": pool}]} for region, pool in pools.items()]
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(_PLACED + yaml.safe_dump({"regions": regions}, sort_keys=False))
    temporary.replace(path)
