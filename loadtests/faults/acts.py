"""Injects faults into parts of the topology `processes`."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from loadtests.faults.catalogue import Act
from loadtests.faults.children import Child
from loadtests.faults.processes import Processes, runs
from loadtests.faults.proxy import SOUND, ProxyFault
from loadtests.faults.topology import TopologyError
from testing.redis_deployments import SentinelDeployment
from testing.valkey import Valkey
from testing.waiting import wait_until

SUPERVISED = {"worker": "gateway", "shipper": "shipper", "admin": "admin", "batches": "batches"}
"""The parts that the gateway's supervisor restarts, and their roles."""
_LATE = 0.2
"""Seconds by which replies of a slow Redis are delayed."""
_EARLIER = 4.0
"""Seconds by which one backend returns before the other backends."""


@contextmanager
def kill(topology: Processes, part: str) -> Iterator[None]:
    """Kill all processes of a part."""
    if part in SUPERVISED:
        running = topology.gateway.processes()
        victim = next(pid for name, pid in running.items() if name.startswith(SUPERVISED[part]))
        os.kill(victim, signal.SIGKILL)
        yield  # the supervisor starts it again
        return
    before = topology.gateway.processes().values()
    for each in topology.members(part):
        each.kill()
    if part == "gateway":
        wait_until(lambda: not any(map(runs, before)), what="all its processes ended")
    yield
    for each in topology.members(part):
        each.start()
    topology.wait_for_backends()


@contextmanager
def stop(topology: Processes, part: str) -> Iterator[None]:
    """Pause a part by SIGSTOP: the part keeps its connections but answers nothing."""
    members = [each for each in topology.members(part) if isinstance(each, Valkey | Child)]
    for each in members:
        each.pause()
    try:
        yield
    finally:
        for each in members:
            each.resume()


def proxied(**fault: float) -> Act:
    """Return an `Act` that makes the proxies of backends behave as `ProxyFault(**fault)`."""

    @contextmanager
    def act(topology: Processes, part: str) -> Iterator[None]:
        for backend in topology.backends_of(part):
            topology.set_fault(backend, ProxyFault(**fault))  # type: ignore[arg-type]
        yield
        for backend in topology.backends_of(part):
            topology.set_fault(backend, SOUND)

    return act


@contextmanager
def all_down(topology: Processes, part: str) -> Iterator[None]:
    """Refuse the calls of all backends.

    At the end of the fault, the last backend in the list accepts calls some seconds before the
    other backends.
    """
    *others, last = topology.backends_of(part)
    for backend in (*others, last):
        topology.set_fault(backend, ProxyFault(refuses=True))
    yield
    topology.set_fault(last, SOUND)
    for backend in others:
        threading.Timer(_EARLIER, partial(topology.set_fault, backend, SOUND)).start()


@contextmanager
def revision(topology: Processes, part: str) -> Iterator[None]:
    """Load another revision of the model."""
    for backend in topology.backends_of(part):
        backend.change_revision()
    topology.oracle.learn()
    yield


@contextmanager
def full(topology: Processes, part: str) -> Iterator[None]:
    """Fill the memory of a Redis that evicts nothing."""
    redis = topology.server(part)
    redis.configure("maxmemory-policy", "noeviction")
    redis.configure("maxmemory", "1")
    try:
        yield
    finally:
        redis.configure("maxmemory", "0")


@contextmanager
def redis_latency(topology: Processes, part: str) -> Iterator[None]:
    """Delay every reply of a Redis."""
    topology.delays[part] = _LATE
    try:
        yield
    finally:
        topology.delays[part] = 0.0


@contextmanager
def failover(topology: Processes, part: str) -> Iterator[None]:
    """Kill the primary of a Redis, and record the seconds without a primary as `away`."""
    deployment = topology.redis[part]
    if not isinstance(deployment, SentinelDeployment):
        raise TopologyError(f"`{part}` has no Sentinels")
    former, topology.notes["away"] = fail_over(deployment)
    yield
    deployment.rejoin(former)


def fail_over(deployment: SentinelDeployment) -> tuple[Valkey, float]:
    """Kill the primary. Return the killed server, and the seconds without a primary."""
    former = deployment.kill_primary()
    killed = time.monotonic()
    wait_until(lambda: deployment.current() is not None, what="a new primary")
    return former, time.monotonic() - killed
