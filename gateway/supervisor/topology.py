"""Builds the specs of the processes of a gateway and its backends."""

import random
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from sluicegate.gateway.settings import Settings, environment
from sluicegate.gateway.sockets.networks import Networks
from sluicegate.gateway.sockets.proxy_protocol import UNKNOWN_CLIENT
from sluicegate.gateway.supervisor.listeners import free_port
from sluicegate.gateway.supervisor.local_http import Preface
from sluicegate.gateway.supervisor.machine import PROVIDER, Devices
from sluicegate.gateway.supervisor.probes import probe_http, probe_listener
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec, is_started
from sluicegate.wire.gpus import Gpu

# `-P` keeps Python from importing from the working directory, which may contain another folder
# `gateway`.
PYTHON = (sys.executable, "-P", "-m")
_LOOPBACK = "127.0.0.1"
_ANYWHERE = {"0.0.0.0": _LOOPBACK, "::": "::1"}  # noqa: S104 - compared, not bound
_BEYOND_DRAIN = 5.0
_OF_BACKENDS = 0.8
"""The fraction of the memory for backends. The remaining memory is for the gateway's processes and
Valkey."""
# Backends get a timeout that is longer than the timeout of other processes by this factor, because
# loading a large model may block a backend's interpreter.
_LOADING = 3.0
_READY_WITHIN = 120.0
# The first start on a GPU takes longer than on a CPU, because a backend compares variants of
# graphs, and builds engines.
_READY_ON_GPU_WITHIN = 1800.0
_ON_CPU = Devices()


def backend_specs(
    regions: Sequence[str],
    *,
    models: Path,
    more_models: Path | None = None,
    settings: Settings,
    choose: random.Random,
    memory: int = 0,
    devices: Devices = _ON_CPU,
) -> list[ProcessSpec]:
    """Return the specs of the backends of all regions.

    Each backend gets a free loopback port, and keeps this port when it restarts. If there are no
    GPUs, each region has one backend. If the settings have no memory limit, the backends share four
    fifths of `memory` bytes equally. If `memory` is 0, they have no limit.
    """
    places = list(_places(regions, devices))
    sharing = Counter(gpu.uuid for _, gpu in places if gpu is not None)
    bound = settings.backend_memory_limit_bytes
    if bound is None:
        bound = int(memory * _OF_BACKENDS) // max(1, len(places))
    more = () if more_models is None else ("--more-models", str(more_models))
    taken: set[int] = set()
    indexes: Counter[str] = Counter()
    specs = []
    for region, gpu in places:
        port = free_port(_LOOPBACK, taken=taken, choose=choose)
        taken.add(port)
        options = ("--models", str(models), *more, "--host", _LOOPBACK, "--port", str(port))
        index = indexes[region]
        indexes[region] += 1
        name = f"{region}-{index}"
        own = {} if gpu is None else _on_gpu(gpu, devices.provider, sharing[gpu.uuid])
        specs.append(
            ProcessSpec(
                name=f"backend-{name}",
                role=ProcessRole.BACKEND,
                region=region,
                index=index,
                argv=(
                    *PYTHON,
                    "sluicegate.backends",
                    "serve",
                    *options,
                    "--region",
                    region,
                    "--id",
                    name,
                ),
                # A backend stops without a delay, because the gateways that call it stop first.
                environment={
                    "SLUICEGATE_BACKEND_TOKEN": settings.backend_token,
                    "SLUICEGATE_BACKEND_SHUTDOWN_DELAY": "0",
                    **own,
                },
                probe=partial(probe_http, _LOOPBACK, port),
                address=f"http://{_LOOPBACK}:{port}",
                stop_within=settings.drain + _BEYOND_DRAIN,
                ready_within=_READY_WITHIN if gpu is None else _READY_ON_GPU_WITHIN,
                heartbeat_variable="SLUICEGATE_BACKEND_HEARTBEAT_FD",
                silent_within=settings.heartbeat_timeout * _LOADING,
                memory_bytes=bound,
                device="" if gpu is None else gpu.uuid,
            )
        )
    return specs


def _places(regions: Sequence[str], devices: Devices) -> Iterator[tuple[str, Gpu | None]]:
    """Yield the region and the GPU of each backend. Regions get GPUs in turn."""
    if not devices.gpus:
        yield from ((region, None) for region in regions)
        return
    for number in range(max(len(regions), len(devices.gpus))):
        region = regions[number % len(regions)]
        gpu = devices.gpus[number % len(devices.gpus)]
        yield from [(region, gpu)] * devices.backends_of_each


def _on_gpu(gpu: Gpu, provider: str, sharing: int) -> Mapping[str, str]:
    """Return the environment of a backend. The backend sees only this GPU, as device 0."""
    return {
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        PROVIDER: provider,
        "SLUICEGATE_BACKEND_DEVICE": "0",
        "SLUICEGATE_BACKEND_GPU_PROCESSES": str(sharing),
    }


def first_of_devices(
    backends: Sequence[ProcessSpec],
) -> tuple[list[ProcessSpec], list[ProcessSpec]]:
    """Divide `backends` into those that start first, and those that start afterwards.

    The second group starts when the first group is ready. The first backend on a GPU measures its
    models at its start. During the measurement, no other backend may use the GPU.
    """
    seen: set[str] = set()
    first: list[ProcessSpec] = []
    later: list[ProcessSpec] = []
    for spec in backends:
        (later if spec.device in seen else first).append(spec)
        if spec.device:
            seen.add(spec.device)
    return first, later


def worker_specs(
    settings: Settings, listeners: Sequence[socket.socket], *, alone: bool = False
) -> list[ProcessSpec]:
    """Return the spec of a worker for each listener.

    If `alone` is true, this supervisor does not start the processes on which workers depend. A
    worker is then regarded as ready as soon as it listens.
    """
    specs = []
    for index, listener in enumerate(listeners):
        siblings = tuple(other for other in listeners if other is not listener)
        own = msgspec.structs.replace(
            settings,
            worker=str(index),
            listen_fd=listener.fileno(),
            sibling_fds=" ".join(str(other.fileno()) for other in siblings),
        )
        spec = _own(ProcessRole.GATEWAY, "run-worker", own, index=index)
        spec = _serving(
            spec,
            listener,
            settings.host,
            settings.port,
            preface=preface_of_workers(settings),
            alone=alone,
        )
        specs.append(msgspec.structs.replace(spec, siblings=siblings))
    return specs


def admin_spec(
    settings: Settings, listener: socket.socket, admin_key: str, *, alone: bool = False
) -> ProcessSpec:
    """Return the spec of the operators' listener. Only this process gets the admin key."""
    own = msgspec.structs.replace(
        settings, admin_key=admin_key, worker="admin", listen_fd=listener.fileno()
    )
    spec = _own(ProcessRole.ADMIN, "run-admin", own)
    return _serving(
        spec,
        listener,
        settings.admin_host,
        settings.admin_port,
        preface=preface_of_admin(settings),
        alone=alone,
    )


def event_specs(settings: Settings, roles: Sequence[ProcessRole]) -> list[ProcessSpec]:
    """Return the specs of background processes, which have a low priority.

    Possible `roles` are the shipper, billing, the request log and batches.
    """
    return [
        msgspec.structs.replace(
            _own(role, f"run-{role.value}", msgspec.structs.replace(settings, worker=role.value)),
            gives_way=True,
        )
        for role in roles
        if role is not ProcessRole.BATCHES or settings.batches
    ]


def reachable(host: str) -> str:
    """Return the address at which this machine reaches a listener that is bound to `host`.

    For example, return `127.0.0.1` for `0.0.0.0`.
    """
    return _ANYWHERE.get(host, host)


def preface_of_workers(settings: Settings) -> Preface:
    """Return what the supervisor must send to the customers' listener before HTTP."""
    # A connection to an address of this machine has the same address as its source. The supervisor
    # is therefore a trusted proxy if the listener's address is a trusted proxy.
    is_proxy = settings.proxy_protocol and _address_of(settings.host) in Networks(
        settings.trusted_proxies
    )
    return Preface(settings.tls_certificate is not None, UNKNOWN_CLIENT if is_proxy else b"")


def preface_of_admin(settings: Settings) -> Preface:
    """Return what the supervisor sends on a connection to the operators' listener before HTTP."""
    return Preface(settings.admin_tls_certificate is not None)


def url_of(preface: Preface, host: str, port: int) -> str:
    """Return a listener's URL."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if preface.is_tls else 'http'}://{shown}:{port}"


def child_command(entry: str) -> tuple[str, ...]:
    """Return the command line of the internal command `entry` of `python -m sluicegate.gateway`."""
    return (*PYTHON, "sluicegate.gateway", entry)


def _address_of(host: str) -> str:
    host = reachable(host)
    try:
        return socket.gethostbyname(host)  # `bind` resolves the name in the same way
    except OSError:
        return host  # an IPv6 address, or an unknown name, to which nothing can be bound


def _serving(
    spec: ProcessSpec,
    listener: socket.socket,
    host: str,
    port: int,
    *,
    preface: Preface,
    alone: bool,
) -> ProcessSpec:
    """Return a copy of `spec` for a process that serves HTTP on `listener`."""
    rest = is_started if alone else partial(probe_http, reachable(host), port, preface)
    return msgspec.structs.replace(
        spec,
        listener=listener,
        address=url_of(preface, host, port),
        probe=partial(probe_listener, listener, rest),
    )


def _own(role: ProcessRole, entry: str, settings: Settings, *, index: int = 0) -> ProcessSpec:
    return ProcessSpec(
        name=f"{role.value}-{index}" if role is ProcessRole.GATEWAY else role.value,
        role=role,
        index=index,
        argv=child_command(entry),
        environment=environment(settings),
        stop_within=settings.drain + _BEYOND_DRAIN,
        replace_within=settings.shutdown_delay + settings.drain + _BEYOND_DRAIN,
        heartbeat_variable="SLUICEGATE_HEARTBEAT_FD",
        silent_within=settings.heartbeat_timeout,
        memory_bytes=settings.memory_limit_bytes,
    )
