"""Starts every service of the layout, several at a time, as a container engine does."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from loadtests.arena import topology
from loadtests.arena.podman import PodmanError
from loadtests.arena.system import Arena, ArenaError
from loadtests.arena.topology import Service

_AT_ONCE = 4


def bring_up(arena: Arena, names: list[str] | None = None) -> float:
    """Start the named services, or all, each once those that it needs are healthy.

    Returns:
        Seconds until all of them were healthy.

    Raises:
        ArenaError: one is not healthy in time.
    """
    started = time.monotonic()
    topology.make_networks()
    topology.make_volumes(arena.services)
    chosen = {name: arena.services[name] for name in names or arena.services}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done: dict[str, Future[None]] = {}
        # Those that a service needs are before it: no thread waits for what has not begun.
        for name, service in chosen.items():
            done[name] = pool.submit(_start, arena, service, dict(done))
        try:
            for each in done.values():
                each.result()
        except (ArenaError, PodmanError):
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return time.monotonic() - started


def _start(arena: Arena, service: Service, before: Mapping[str, "Future[None]"]) -> None:
    for need in service.needs:
        if need in before:
            before[need].result()
    topology.start(service)
    arena.until_healthy([service.name])
