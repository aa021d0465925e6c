"""Imports Ray where a job asks for it."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from backends.installing import install_command
from bulk.errors import BulkStopped
from bulk.settings import silence_ray


def import_ray(module: str = "ray") -> Any:
    """Return a module of Ray, which is imported by few and large.

    Raises:
        BulkStopped: it is not installed.
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
    """Connect this process to a cluster; `local` starts one of this machine.

    Raises:
        BulkStopped: there is no cluster.
    """
    ray = import_ray()
    # Of a cluster that this process starts: nobody looks at a dashboard that ends with the job.
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
    """Return what Ray Data is told of a stage's actors; `actors` of 0 are as many as have room.

    `initial` of them, where they have room now, are started at once; Ray Data adds others one after
    the other, and leaves room for the tasks of other stages. Only where there are no others may it
    be more than 1: actors that take all cores would wait for ever for what these tasks read.
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
    """Return how many actors have room on the nodes that there are; at least 1."""
    ray = import_ray()
    if not ray.is_initialized():
        return 1
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max(1, actors_with_room(nodes, threads=threads, gpus=gpus))


def actors_with_room(nodes: Sequence[Mapping[str, float]], *, threads: int, gpus: float = 0) -> int:
    """Return how many actors nodes with such resources hold, as Ray names them."""
    rooms = [int(node.get("CPU", 0) // threads) for node in nodes]
    if gpus:
        of_gpus = [int(node.get("GPU", 0) / gpus) for node in nodes]
        rooms = list(map(min, rooms, of_gpus))
    return sum(rooms)
