"""Breaks the containers and networks of the production layout.

It also replaces and upgrades containers, rotates secrets, and restores a backup, as the
documentation tells operators.
"""

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final  # Any: answers of the admin listener

import httpx
import msgspec

from loadtests.containers import images, services
from loadtests.containers.images import FORMER, PRESENT, tagged
from loadtests.containers.podman import HOME, execute, inspect, run
from loadtests.containers.services import BALANCER_PORT, PREFIX, Service
from loadtests.faults.catalogue import Act, Case, Fault, LoadSpec
from loadtests.faults.containers import ADMIN_KEY, Containers
from loadtests.faults.judge import Window
from loadtests.faults.topology import TopologyError, repeating
from loadtests.file_systems import fill
from loadtests.process_resources import peak_mib
from sluicegate.gateway.settings import process_environment
from testing.compose_files import HA, ROOT, merged
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
_TOKEN: Final = "SLUICEGATE_BACKEND_TOKEN"  # noqa: S105 - the name of a variable
_SECOND_TOKEN: Final = "SLUICEGATE_BACKEND_SECOND_TOKEN"  # noqa: S105 - as above
_SECOND_ADMIN_KEY: Final = "SLUICEGATE_SECOND_ADMIN_KEY"
_LONGEST = 90.0
"""Seconds that the replacement of a container may take."""
_PAUSE = 2.0
"""Seconds of load between two replacements."""
_BALANCER = "load-balancer"
_OTHER_PORT = BALANCER_PORT + 1
_MOVED = 3.0
"""After this many seconds, nobody uses the former balancer, because exchanges are shorter."""
_ORDER = ("billing", "request-log", "gateway-", "backend-", "")
"""The order of an upgrade, by beginnings of names: the project's own services come first."""
_STATE = ("redis-state", "redis-state-replica")
_DATA = ["database", *_STATE, "sentinel-0", "sentinel-1", "sentinel-2"]
_USERS = ["gateway-1", "gateway-2", "billing", "request-log"]
_SAME_FOR = 5.0
LASTING_KEYS = (
    "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do"
    " if redis.call('PTTL', key) == -1 then"
    " found[#found + 1] = redis.call('TYPE', key).ok .. ' ' .. key end end"
    " table.sort(found) return found"
)
"""The query for the keys in a state Redis that do not expire, with their types: the event stream,
positions in it, the configuration. Other keys are limits, which may expire before a backup is
restored."""


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
def _names(topology: Containers, _: str) -> Iterator[None]:
    """Pause podman's name server. Meanwhile, all services must be healthy."""
    found = subprocess.run(["pgrep", "-x", "aardvark-dns"], capture_output=True, check=True)  # noqa: S607
    servers = [*map(int, found.stdout.split())]
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
        if unwell := topology.unwell():
            raise TopologyError(f"unhealthy without a name server: {', '.join(unwell)}")
    finally:
        for pid in servers:
            os.kill(pid, signal.SIGCONT)


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


# --- Rotation and upgrade


@contextmanager
def _rotation(layout: Containers, _: str) -> Iterator[None]:
    """Replace the backend token and the admin key."""
    old = layout.services["gateway-1"].environment
    token, keys = secrets.token_urlsafe(24), (old[ADMIN_KEY], secrets.token_urlsafe(24))
    both = {ADMIN_KEY: keys[1], _SECOND_ADMIN_KEY: keys[0]}
    # The kind of the services to change, their variables, of which an empty value removes one, and
    # whether a gateway then accepts the old and the new admin key.
    steps: tuple[tuple[str, dict[str, str], tuple[bool, ...]], ...] = (
        ("backend-", {_TOKEN: token, _SECOND_TOKEN: old[_TOKEN]}, ()),
        ("gateway-", {_TOKEN: token}, ()),
        ("backend-", {_SECOND_TOKEN: ""}, ()),
        ("gateway-", both, (True, True)),
        ("gateway-", {_SECOND_ADMIN_KEY: ""}, (False, True)),
    )
    for kind, variables, accepted in steps:
        for name in [name for name in layout.services if name.startswith(kind)]:
            former = layout.services[name]
            environment = {k: v for k, v in (former.environment | variables).items() if v}
            _renew(layout, msgspec.structs.replace(former, environment=environment))
            found = tuple(_is_accepted(layout, name, key) for key in keys if accepted)
            if found != accepted:
                raise TopologyError(f"{name}: old and new admin key accepted: {found}")
    layout.secrets[ADMIN_KEY] = keys[1]
    yield


def _is_accepted(layout: Containers, gateway: str, key: str) -> bool:
    with layout.admin(gateway, key) as admin:
        return admin.get("/admin/tenants").is_success


@contextmanager
def _upgrade(layout: Containers, _: str) -> Iterator[None]:
    """Replace each container by its next version; the load balancer is last.

    The next version of one of the project's images has the tag of this release. The next version of
    another image has a new label.
    """

    def place(name: str) -> tuple[bool, int]:
        kind = next(n for n, kind in enumerate(_ORDER) if name.startswith(kind))
        return name == _BALANCER, kind

    for name in sorted(layout.services, key=place):
        service = layout.services[name]
        if not service.ends:
            own = service.image.startswith("localhost/")
            image = (
                tagged(service.image, PRESENT) if own else images.next_version(service.image, name)
            )
            _renew(layout, msgspec.structs.replace(service, image=image))
    yield


def _renew(layout: Containers, changed: Service) -> None:
    """Replace a container by a new, healthy one, and let the load run for a while."""
    name, began = changed.name, time.monotonic()
    if name == _BALANCER:
        _renew_balancer(layout, changed)
    else:
        if name in _STATE and _primary(layout) == name:
            _fail_over(layout, name)
        layout.replace(changed)
        if name in _STATE:
            _wait(lambda: _is_copied(layout, name), "the copy is complete")
    layout.services[name] = changed
    took = time.monotonic() - began
    print(f"  {name}: {took:.1f} s", flush=True)
    if took > _LONGEST:
        raise TopologyError(f"the replacement of {name} took {took:.0f} s")
    time.sleep(_PAUSE)


def _renew_balancer(layout: Containers, changed: Service) -> None:
    """Replace the balancer. In the meantime, callers use a second balancer.

    To callers, this is like an address that moves between balancers.
    """
    # The second balancer may have any address. Gateways do not know this address, so they take the
    # second balancer for the caller.
    networks = dict.fromkeys(changed.networks, "")
    second = msgspec.structs.replace(changed, name=f"{_BALANCER}-next", networks=networks)
    services.start(second, port=_OTHER_PORT)
    _wait(lambda: services.is_healthy(second), "the second balancer is healthy")
    layout.send_to(_OTHER_PORT)
    time.sleep(_MOVED)
    services.discard(changed)
    services.start(changed)
    layout.until_healthy([_BALANCER])
    layout.send_to(BALANCER_PORT)
    time.sleep(_MOVED)
    services.discard(second)


def _fail_over(layout: Containers, former: str) -> None:
    """Make another server the primary of the state Redis, and wait until all others follow."""
    # The Sentinels refuse the command while a failover is in progress, and until they know the
    # replica, which takes some 10 s.
    _wait(lambda: _sentinel(layout, "sentinel", "failover", "state") == "OK", "a failover begins")
    _wait(lambda: _primary(layout) != former, "there is another primary")
    _wait(lambda: _is_copied(layout, former), "the former primary follows")


def _primary(layout: Containers) -> str:
    """Return the service that the Sentinels name as the primary of the state Redis."""
    return _sentinel(layout, "sentinel", "get-master-addr-by-name", "state").split()[0]


def _sentinel(layout: Containers, *words: str) -> str:
    return _redis(layout, "sentinel-0", "-p", "26379", *words)


def _is_copied(layout: Containers, name: str) -> bool:
    return "master_link_status:up" in _redis(layout, name, "info", "replication")


def _redis(layout: Containers, name: str, *words: str) -> str:
    """Return the answer of a Redis or a Sentinel; "" if it does not answer."""
    container = layout.services[name].container
    return execute(container, "redis-cli", *words, check=False).strip()


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
            # A process that has just ended has no number.
            pids = filter(str.isdigit, run("top", service.container, "hpid", check=False).split())
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


# --- Backup and restore


def _restored(case: Case) -> Iterator[str]:
    """Back up ledger and state, delete them, and restore them into empty volumes.

    Yield each difference between the data before and after, with the keys and tenants of the
    ledger.
    """
    layout: Containers = case.topology
    seen: list[Any] = [None]

    def is_at_rest() -> bool:
        seen.append(_ledger(layout))
        return bool(seen[-1] == seen[-2])

    _wait(is_at_rest, "the ledger is at rest", every=_SAME_FOR)
    ledger, state, config = seen[-1], _state(layout, _primary(layout)), _config(layout)
    if not state:
        raise TopologyError("the state Redis has nothing that a restore could bring back")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        _script("backup.sh", folder)
        if _ledger(layout) != ledger:
            raise TopologyError("the ledger changed during the backup although nobody used it")
        yield from _lose_data(layout)
        _script("restore.sh", folder)
    if _ledger(layout) != ledger:
        yield "the ledger is not as before the restore"
    with suppress(AssertionError):  # the next step compares the same
        _wait(lambda: _is_on_both(layout, state), "the replica is whole")
    if not _is_on_both(layout, state):
        yield "the state is not as before the restore, or its servers differ"
    layout.start_services(_USERS)
    layout.until_healthy(layout.services)
    if _config(layout) != config:
        yield "the configuration is not as before the restore"
    yield from _refused_keys(layout)


def _refused_keys(layout: Containers) -> Iterator[str]:
    url = f"http://127.0.0.1:{BALANCER_PORT}/v1/models"
    for tenant, key in layout.keys.items():
        headers = {"authorization": f"Bearer {key}"}
        if not httpx.get(url, headers=headers, timeout=30.0).is_success:
            yield f"the key of {tenant} is not accepted after the restore"


def _lose_data(layout: Containers) -> Iterator[str]:
    """Replace every server that has data by one with an empty volume."""
    for name in [*_USERS, *_DATA]:
        services.discard(layout.services[name])
    for name in _DATA:
        for disk in layout.services[name].disks[:1]:
            services.remove_volume(disk)
    layout.start_services(_DATA)
    seen = "slaves=1,sentinels=3"
    _wait(lambda: seen in _sentinel(layout, "info", "sentinel"), "Sentinel sees the replica")
    if _ledger(layout) or _state(layout, _STATE[0]):
        yield "the volumes were not empty"


def _script(name: str, folder: str) -> None:
    own = {
        "CONTAINERS_CONF": str(HOME / "containers.conf"),
        "SLUICEGATE_EXEC": "podman exec -i",
        "SLUICEGATE_PREFIX": PREFIX,
    }
    done = subprocess.run(
        [str(ROOT / "deploy" / name), folder],
        env={**process_environment(), **own},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise TopologyError(f"deploy/{name}: {done.stderr.strip()[-2000:]}")


def _config(layout: Containers) -> Any:
    with layout.admin() as admin:
        found = admin.get("/admin/config").raise_for_status().json()
    return found | {"workers": None}


def _state(layout: Containers, name: str) -> list[str]:
    return _redis(layout, name, "-e", "eval", LASTING_KEYS, "0").splitlines()


def _is_on_both(layout: Containers, state: list[str]) -> bool:
    return all(_state(layout, name) == state for name in _STATE)


def _ledger(layout: Containers) -> dict[str, list[str]]:
    """Return the number of rows and a digest of each table."""
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    digest = "SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM"
    return {
        table: layout.ask_ledger(f'{digest} "{table}" AS t')[0]
        for (table,) in layout.ask_ledger(tables)
    }


def _wait(holds: Callable[[], bool], what: str, *, every: float = 0.25) -> None:
    wait_until(holds, within=60.0, what=what, every=every)


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
    _fault("names", "the name server of all networks is paused", "it goes on", _names, ("all",),
           hold=30.0),
    _fault("start", "nothing: the layout started from empty volumes", "nothing", None, ("all",),
           load=_SLOW, checks=(_memory, _started, _observed)),
    _fault("rotation", "the backend token and the admin key are replaced", "nothing",
           _rotation, ("all",), load=_SLOW),
    _fault("restore", "after the load a backup is restored into empty volumes", "nothing", None,
           ("all",), load=_SLOW, checks=(_restored,)),
    _fault("upgrade", "the former release is upgraded, container by container", "nothing",
           _upgrade, ("all",), load=_SLOW, setup=FORMER,
           checks=(*_ALL, _observed)),
)  # fmt: skip
