"""Imports Ray, and sets up clusters and actors."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.settings import silence_ray
from sluicegate.wire.installing import install_command


def import_ray(module: str = "ray") -> Any:
    """Import a module of Ray, which is large and optional.

    Raises:
        BulkStopped: Ray is not installed.
    """
    silence_ray()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "ray":
            raise
        command = install_command("backend-cpu,bulk,ray")
        raise BulkStopped(f"Ray is not installed; run {command}") from None


def connect(address: str) -> None:
    """Connect this process to a cluster; `local` starts a cluster on this machine.

    Raises:
        BulkStopped: no cluster answers at this address.
    """
    ray = import_ray()
    # A local cluster needs no dashboard, because it ends with the job.
    own = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise BulkStopped(f"--ray: no cluster answers at `{address}`: {reason}") from None
    context = import_ray("ray.data").DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def actor_options(*, threads: int, gpus: float, actors: int, initial: int = 1) -> dict[str, Any]:
    """Return Ray Data's options for the actors of a stage.

    `actors` is the number of actors; 0 means as many as fit. In that case, up to `initial` actors
    start immediately, and Ray Data adds more one by one.

    Use an `initial` above 1 only if no other stage needs cores. Otherwise, the actors could take
    all cores and wait forever for the output of the other stages.
    """
    pool = import_ray("ray.data").ActorPoolStrategy
    if actors:
        compute = pool(size=actors)
    else:
        if initial > 1:
            initial = min(initial, _room(threads=threads, gpus=gpus))
        compute = pool(min_size=1, max_size=None, initial_size=initial)
    options: dict[str, Any] = {"compute": compute, "num_cpus": threads}
    return options | ({"num_gpus": gpus} if gpus else {})


def _room(*, threads: int, gpus: float) -> int:
    """Return how many actors fit on the present nodes, and at least 1."""
    ray = import_ray()
    if not ray.is_initialized():
        return 1
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max(1, actors_with_room(nodes, threads=threads, gpus=gpus))


def actors_with_room(nodes: Sequence[Mapping[str, float]], *, threads: int, gpus: float = 0) -> int:
    """Return how many actors fit on `nodes`.

    Each node maps the names of Ray's resources to their amounts.
    """
    rooms = [int(node.get("CPU", 0) // threads) for node in nodes]
    if gpus:
        of_gpus = [int(node.get("GPU", 0) / gpus) for node in nodes]
        rooms = list(map(min, rooms, of_gpus))
    return sum(rooms)
