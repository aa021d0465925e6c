"""Breaks the containers and networks of the production layout.

It also replaces and upgrades containers, rotates secrets, and restores a backup.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path

import httpx
import msgspec

from loadtests.containers import images, services
from loadtests.containers.images import FORMER, PRESENT
from loadtests.containers.podman import inspect, run
from loadtests.containers.services import PREFIX, Service
from loadtests.faults import procedures
from loadtests.faults.catalogue import Act, Case, Fault, LoadSpec
from loadtests.faults.containers import Containers
from loadtests.faults.judge import Window
from loadtests.faults.topology import TopologyError, repeating
from loadtests.file_systems import fill
from loadtests.process_resources import peak_mib
from testing.compose_files import HA, merged
from testing.prometheus import Prometheus
from testing.waiting import wait_until

_HEALTHY, _START, _LOOK = 90.0, 60.0, 0.25
"""The most seconds until the whole layout is healthy, and until one container is; seconds between
two looks."""
_TARGETS = 4
"""The targets that Prometheus scrapes: two gateways and two backends."""

_LOAD = LoadSpec(rate=80.0, repeated=0.0, hasty=0.0)
_SLOW = LoadSpec(rate=30.0, repeated=0.0, hasty=0.0)
_BALANCER_AWAY = {"load": Window(is_open=True, after_end=3)}
_SILENT = {
    "load": Window(is_open=True, after_end=10),
    # The balancer sends requests to a silent gateway until the gateway has missed two health
    # checks.
    "gateway": Window(after_begin=5),
}
_LOST = {
    # There is only one balancer, so callers get no answer while it is away.
    "load": Window(is_open=True, after_end=5),
    "edge": Window(is_open=True, after_end=10),
    # A gateway that dies loses its requests in flight. The load does not send them again.
    "gateway": Window(after_begin=3),
    # No model can be reached, so only requests that the cache can answer succeed.
    "backends": Window(is_open=True, after_end=10),
}
_MEMORY_MIB = {
    "gateway": 384,
    "backend": 1024,
    "billing": 256,
    "request": 256,
    "redis": 640,
    "sentinel": 128,
    "database": 384,
    "load": 128,
}
"""The most resident memory that one process of a kind may have during any fault."""


# --- Parts


@cache
def _lasting() -> dict[str, Service]:
    """Return the services that run until they are stopped, and so no migration."""
    found = services.services(services.new_secrets(), tag=PRESENT)
    return {name: each for name, each in found.items() if not each.ends}


def _highly_available() -> dict[str, Service]:
    """Return the services of `_lasting`, without the services of the observability stack."""
    return {name: each for name, each in _lasting().items() if name in merged(HA)["services"]}


def _with_disk() -> Sequence[str]:
    return [name for name, each in _highly_available().items() if each.disks]


def _with_any_address() -> Sequence[str]:
    """Return the services to which compose.yaml assigns no address."""
    return [name for name, each in _highly_available().items() if not any(each.networks.values())]


# --- Faults of one container


@contextmanager
def _kill(topology: Containers, part: str) -> Iterator[None]:
    container = topology.services[part].container
    former = inspect(container)
    os.kill(former.pid, signal.SIGKILL)
    yield

    def is_back() -> bool:
        now = inspect(container)
        return now.status == "running" and now.pid not in (0, former.pid)

    wait_until(is_back, within=30.0, what=f"the engine restarted {part}", every=_LOOK)
    topology.until_healthy([part], within=_START)


@contextmanager
def _stop(topology: Containers, part: str, *, grace: int | None = None) -> Iterator[None]:
    """Stop a container, and give it `grace` seconds to end. The engine does not restart it."""
    services.stop(topology.services[part], grace)
    yield
    topology.start_services([part])


@contextmanager
def _freeze(topology: Containers, part: str) -> Iterator[None]:
    run("pause", topology.services[part].container)
    yield
    run("unpause", topology.services[part].container)


@contextmanager
def _full(topology: Containers, part: str) -> Iterator[None]:
    path = topology.services[part].disks[0] / ".fills-the-disk"

    def fill_again() -> float:
        fill(path)
        return 1.0

    with repeating(fill_again):
        yield
    path.unlink()


@contextmanager
def _address(topology: Containers, part: str) -> Iterator[None]:
    service = topology.services[part]
    before = inspect(service.container).address
    services.discard(service)
    yield
    services.start(service)
    now = inspect(service.container).address
    if kept := [network for network, address in before.items() if now[network] == address]:
        raise TopologyError(f"{part} has its old address in {', '.join(kept)}")
    topology.until_healthy([part], within=_START)


@contextmanager
def _replace(topology: Containers, part: str) -> Iterator[None]:
    service = topology.services[part]
    image = images.next_version(service.image, part)
    topology.replace(msgspec.structs.replace(service, image=image))
    yield


@contextmanager
def _roll(topology: Containers, part: str) -> Iterator[None]:
    """Replace the containers of one kind in turn."""
    for name in _highly_available():
        if name.startswith(f"{part}-"):
            with _replace(topology, name):
                pass
    yield


def _cut(*rule: str) -> Act:
    """Return an `Act` that drops all packets that one container sends, or all that it receives."""

    @contextmanager
    def act(topology: Containers, part: str) -> Iterator[None]:
        with _dropping([topology.services[part]], rule):
            yield

    return act


@contextmanager
def _cut_network(topology: Containers, network: str) -> Iterator[None]:
    """Drop all TCP packets between the containers of a network.

    Name lookups use UDP and still work, as they do under Docker, where each container has a name
    server of its own.
    """
    members = [s for s in topology.services.values() if network in s.networks and not s.ends]
    (found,) = msgspec.json.decode(run("network", "inspect", PREFIX + network))
    subnet = found["subnets"][0]["subnet"]
    to, away = ("INPUT", "--source", subnet), ("OUTPUT", "--destination", subnet)
    with _dropping(members, (*to, "--protocol", "tcp"), (*away, "--protocol", "tcp")):
        yield
    topology.until_healthy([each.name for each in members])


@contextmanager
def _dropping(chosen: Sequence[Service], *rules: Sequence[str]) -> Iterator[None]:
    """Drop packets by firewall rules in the chosen containers."""
    pids = [inspect(each.container).pid for each in chosen]

    def change(action: str) -> None:
        for pid, rule in product(pids, rules):
            if Path(f"/proc/{pid}").exists():
                command = ("nsenter", f"--target={pid}", "--net", "iptables", "--wait", action)
                subprocess.run([*command, *rule, "--jump", "DROP"], check=True)

    change("--insert")
    yield
    change("--delete")


# --- Checks


def all_gateways_serve(case: Case) -> Iterator[str]:
    """Find gateways that still get no requests after everything works again."""
    well, end = case.counters["well"], case.counters["end"]
    for name in case.topology.services:
        if name.startswith("gateway-") and end.get(name, 0.0) <= well.get(name, 0.0):
            yield f"{name} is given no requests, or does not tell"


def _memory(case: Case) -> Iterator[str]:
    """Find processes whose memory exceeded the bound of their kind."""
    largest = dict.fromkeys(_MEMORY_MIB, 0)
    for name, service in case.topology.services.items():
        if (kind := name.split("-", maxsplit=1)[0]) in _MEMORY_MIB:
            pids = run("top", service.container, "hpid", check=False).split()[1:]
            largest[kind] = max([largest[kind], *map(peak_mib, map(int, pids))])
    case.figures["memory_mib"] = largest
    for kind, size in largest.items():
        if not size:
            yield f"no process of `{kind}` was found"
        if size > _MEMORY_MIB[kind]:
            yield f"a process of `{kind}` had {size} MiB"


def _started(case: Case) -> Iterator[str]:
    """Find out if the layout started slowly, and which images contain build or install tools."""
    topology: Containers = case.topology
    case.figures["started_in"] = round(topology.started_in, 1)
    if topology.started_in > _HEALTHY:
        yield f"the layout was healthy after {topology.started_in:.0f} s"
    for image in sorted({s.image for s in topology.services.values() if "localhost/" in s.image}):
        if found := [*images.tools_in(image)]:
            yield f"`{image}` holds {', '.join(found)}"


def _observed(case: Case) -> Iterator[str]:
    """Find metrics and spans that do not arrive."""
    topology: Containers = case.topology
    prometheus = Prometheus(topology.url("prometheus", 9090))
    try:
        wait_until(lambda: prometheus.value("count(up == 1)") >= _TARGETS, every=_LOOK)
    except (AssertionError, httpx.HTTPError):
        yield "Prometheus does not read every target"
    spans = httpx.get(topology.url("otel-collector", 4318), timeout=10.0)
    is_stand_in = spans.headers.get("content-type") == "application/json"
    if is_stand_in and not spans.json()["requests"]:
        yield "no spans arrive at the collector"


# --- The table

_ALL = (_memory, all_gateways_serve)


_fault = partial(Fault, topology="containers", hold=0.0, load=_LOAD, setup=PRESENT, checks=_ALL)
_BRIEF = _BALANCER_AWAY | {"gateway": Window(after_begin=3)}
_INSIDE, _OUTSIDE = ("!", "--in-interface", "lo"), ("!", "--out-interface", "lo")
FAULTS = (
    _fault("kill", "SIGKILL to a container", "the engine restarts it", _kill, _highly_available,
           windows=_BRIEF),
    _fault("stop", "SIGTERM to a container", "it is started", _stop, _highly_available,
           hold=10.0, windows=_BALANCER_AWAY),
    _fault("freeze", "its processes are paused", "they go on", _freeze, _highly_available,
           hold=30.0, windows=_SILENT),
    _fault("cut-in", "packets to it are dropped", "they pass", _cut("INPUT", *_INSIDE),
           _highly_available, hold=90.0, windows=_SILENT),
    _fault("cut-out", "packets from it are dropped", "they pass", _cut("OUTPUT", *_OUTSIDE),
           _highly_available, hold=90.0, windows=_SILENT),
    _fault("full", "its volume is full", "the space is freed", _full, _with_disk, hold=45.0,
           # A gateway sends no answer without a usage event: `event_log_unavailable`.
           windows={"gateway": Window(is_open=True, after_end=10)}),
    _fault("address", "it is removed", "it is created at another address", _address,
           _with_any_address, windows=_BALANCER_AWAY),
    _fault("replace", "it is removed", "its next version is created", _replace, _highly_available,
           windows=_BALANCER_AWAY),
    _fault("rolling", "both containers are replaced in turn", "nothing", _roll,
           ("gateway", "backend")),
    _fault("lose", "SIGKILL to a container that stays away", "it is started",
           partial(_stop, grace=0), _lasting, hold=10.0, windows=_LOST, load=_SLOW),
    _fault("cut-network", "packets of a network are dropped", "they pass", _cut_network,
           services.networks, hold=10.0, windows=_LOST, load=_SLOW),
    _fault("start", "nothing: the layout started from empty volumes", "nothing", None, ("all",),
           load=_SLOW, checks=(_memory, _started, _observed)),
    _fault("rotation", "the backend token and the admin key are replaced", "nothing",
           procedures.rotation, ("all",), load=_SLOW),
    _fault("restore", "after the load a backup is restored into empty volumes", "nothing", None,
           ("all",), load=_SLOW, checks=(procedures.restored,)),
    _fault("upgrade", "the former release is upgraded, container by container", "nothing",
           procedures.upgrade, ("all",), load=_SLOW, setup=FORMER,
           checks=(*_ALL, _observed)),
)  # fmt: skip
