"""Imports Ray where a job asks for it."""

import importlib
import logging
from typing import Any

from bulk.errors import BulkStopped
from bulk.settings import silence_ray

_MISSING = "Ray is not installed; run `pip install 'sluicegate[backend-cpu,bulk,ray]'`"


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
        raise BulkStopped(_MISSING) from None


def connect(address: str) -> None:
    """Connect this process to a cluster; `local` starts one of this machine.

    Raises:
        BulkStopped: there is no cluster.
    """
    ray = import_ray()
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise BulkStopped(f"--ray: no cluster answers at `{address}`: {reason}") from None
    context = import_ray("ray.data").DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def actor_options(*, threads: int, gpus: float, actors: int) -> dict[str, Any]:
    """Return what Ray Data is told of a stage's actors; `actors` of 0 are as many as have room."""
    pool = import_ray("ray.data").ActorPoolStrategy
    compute = pool(size=actors) if actors else pool(min_size=1, max_size=None)
    options: dict[str, Any] = {"compute": compute, "num_cpus": threads}
    return options | ({"num_gpus": gpus} if gpus else {})
