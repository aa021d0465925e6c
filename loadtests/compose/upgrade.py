"""Replaces every container by the next version of its image, one after the other."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from loadtests.arena import topology
from loadtests.arena.faults import next_version
from loadtests.arena.podman import inspect, run
from loadtests.arena.system import Arena, wait_until
from loadtests.arena.topology import BALANCER_PORT, Service
from loadtests.compose.releases import Release

_BALANCER = "load-balancer"
_OTHER_PORT = BALANCER_PORT + 1
_MOVED = 3.0
"""Seconds after which nobody uses the former balancer: the longest exchange, and more."""
_FAILOVER = 60.0
_FIRST = ("billing", "request-log", "gateway-", "backend-")
_STATE = ("redis-state", "redis-state-replica")


def order(services: Mapping[str, Service]) -> list[str]:
    """Return the order of an upgrade: our own parts, data and what watches, the balancer.

    Those whose command has ended are not replaced.
    """

    def place(name: str) -> int:
        if name == _BALANCER:
            return len(_FIRST) + 1
        kinds = (number for number, kind in enumerate(_FIRST) if name.startswith(kind))
        return next(kinds, len(_FIRST))

    return sorted((name for name, each in services.items() if not each.ends), key=place)


def steps(
    arena: Arena, release: Release, move: Callable[[int], None]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each container in order, and what replaces it.

    `move` leads callers to another port, as an address that moves between balancers does.
    """
    for name in order(arena.services):
        service = arena.services[name]
        if name == _BALANCER:
            yield name, partial(_replace_balancer, arena, service, move)
        else:
            is_ours = service.image.startswith("localhost/")
            image = release.image(service.image) if is_ours else ""
            yield name, partial(replace, arena, service, image)


def primary_of(arena: Arena) -> str:
    """Return the service that the Sentinels name as the primary of the state Redis."""
    ask = ("redis-cli", "-p", "26379", "sentinel", "get-master-addr-by-name", "state")
    return run("exec", arena.services["sentinel-0"].container, *ask).split()[0]


def replace(arena: Arena, service: Service, image: str) -> None:
    """Replace a container, and wait until it is healthy; without `image` by a next version."""
    if service.name in _STATE and primary_of(arena) == service.name:
        _fail_over(arena, service.name)
    image = image or next_version(service)
    former = inspect(service.container)
    topology.discard(service)
    topology.start(service, image=image, former=former)
    arena.until_healthy([service.name])
    if service.name in _STATE:
        wait_until(lambda: _is_copied(service), within=_FAILOVER, what="the copy is not complete")


def _fail_over(arena: Arena, former: str) -> None:
    """Hand the role of the primary over, and wait until the others follow."""
    # Refused while a failover goes on, and until the Sentinels know the copy: some ten seconds.
    wait_until(lambda: _is_begun(arena), within=_FAILOVER, what="the Sentinels fail nothing over")
    wait_until(lambda: primary_of(arena) != former, within=_FAILOVER, what="no other primary")
    replica = arena.services[former]
    wait_until(lambda: _is_copied(replica), within=_FAILOVER, what="the former one leads on")


def _is_begun(arena: Arena) -> bool:
    command = ("redis-cli", "-p", "26379", "sentinel", "failover", "state")
    return run("exec", arena.services["sentinel-0"].container, *command).strip() == "OK"


def _is_copied(service: Service) -> bool:
    return "master_link_status:up" in run(
        "exec", service.container, "redis-cli", "info", "replication", check=False
    )


def _replace_balancer(arena: Arena, service: Service, move: Callable[[int], None]) -> None:
    """Start a second balancer beside the first, move the callers there, and later back."""
    image = next_version(service)
    # At any address: gateways take its callers for one, as they do not know it.
    networks = dict.fromkeys(service.networks, "")
    second = msgspec.structs.replace(service, name=f"{_BALANCER}-next", networks=networks)
    arena.services[second.name] = second
    try:
        topology.start(second, image=image, port=_OTHER_PORT)
        arena.until_healthy([second.name])
        move(_OTHER_PORT)
        time.sleep(_MOVED)
        topology.discard(service)
        topology.start(service, image=image)
        arena.until_healthy([service.name])
        move(BALANCER_PORT)
        time.sleep(_MOVED)
        topology.discard(second)
    finally:
        del arena.services[second.name]
