"""Runs compose.yaml with `ha` and `observability` in containers, and breaks each of them."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Self

import httpx
import msgspec

from loadtests.containers import images, podman, services
from loadtests.containers.layout import Layout, create_keys
from loadtests.containers.podman import inspect, run
from loadtests.containers.services import BALANCER_PORT, PREFIX, Service
from loadtests.faults import procedures
from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import LedgerRow, Window
from loadtests.faults.processes import repeating
from loadtests.faults.recorded import RecordedAnswers
from loadtests.faults.topology import LEDGER_QUERY, TopologyError, ledger_rows
from loadtests.process_resources import peak_mib
from testing.compose_files import HA, merged
from testing.waiting import wait_until

PRESENT, FORMER = "present", "former"
"""Tags of the images of the working tree and of the former release."""
_HEALTHY, _RESTART, _START, _LOOK = 90.0, 30.0, 60.0, 0.25
_FILE = ".fills-the-disk"
_CHUNK = b"\0" * 65_536
_TENANTS = ("north", "south", "west")
_TARGETS = 4
"""The targets of Prometheus: two gateways and two backends."""

_LOAD = LoadSpec(rate=80.0, repeated=0.0, hasty=0.0)
_SLOW = LoadSpec(rate=30.0, repeated=0.0, hasty=0.0)
_BALANCER_AWAY = {"load": Window(is_open=True, after_end=3)}
_SILENT = {
    "load": Window(is_open=True, after_end=10),
    # The balancer gives it requests until it has missed two health checks.
    "gateway": Window(after_begin=5),
}
_LOST = {
    # There is one balancer: while it is away, callers get no answer.
    "load": Window(is_open=True, after_end=5),
    "edge": Window(is_open=True, after_end=10),
    # A gateway that dies loses the requests that it has. They are not sent again.
    "gateway": Window(after_begin=3),
    # No model can be reached: only the cache answers.
    "backends": Window(is_open=True, after_end=10),
}
MEMORY_MIB = {
    "gateway": 384,
    "backend": 1024,
    "billing": 256,
    "request": 256,
    "redis": 640,
    "sentinel": 128,
    "database": 384,
    "load": 128,
}
"""Resident memory that one process of a kind may have, during any fault."""


class Containers:
    """The production layout under podman."""

    name = "containers"

    def __init__(self, setup: object = None) -> None:
        self.layout = Layout(services.new_secrets(), tag=FORMER if setup == FORMER else PRESENT)
        self.oracle = RecordedAnswers()
        self.keys: Mapping[str, str] = {}
        self._port = BALANCER_PORT

    def __enter__(self) -> Self:
        if lack := podman.missing():
            raise TopologyError(lack)
        podman.prepare()
        with failures(), ExitStack() as stack:
            images.build(PRESENT)
            if FORMER in self.layout.services["gateway-1"].image:
                images.build(FORMER, images.former_release())
            services.remove_everything()
            stack.callback(services.remove_everything)
            began = time.monotonic()
            self.layout.start()
            self.started_in = time.monotonic() - began
            with self.layout.admin() as admin:
                self.keys = create_keys(admin, _TENANTS)
            self.oracle.record(f"http://127.0.0.1:{self._port}", self.keys[_TENANTS[0]])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def parts(self, fault: str) -> Sequence[str]:
        """Return services, networks, or `all`, depending on the fault."""
        fixed = {"cut-network": [*services.networks()], "rolling": ["gateway", "backend"]}
        if fault in fixed or fault in _PROCEDURES:
            return fixed.get(fault, ["all"])
        highly_available = merged(HA)["services"]
        return [
            name
            for name, each in self.layout.services.items()
            if not each.ends
            and (fault == "lose" or name in highly_available)
            and (fault != "full" or each.disk is not None)
            # compose.yaml gives the others their addresses.
            and (fault != "address" or not any(each.networks.values()))
        ]

    @contextmanager
    def inject(self, fault: str, part: str) -> Iterator[None]:
        """Do a fault to a service, to a network, or to the whole layout."""
        with failures():
            if fault in _PROCEDURES:
                procedures.take(_PROCEDURES[fault](self))
                yield
            elif fault == "cut-network":
                with _cut_network(self.layout, part):
                    yield
            elif fault == "rolling":
                for name in self.parts("kill"):
                    if name.startswith(f"{part}-"):
                        with _replace(self.layout, self.layout.services[name]):
                            pass
                yield
            else:
                with _FAULTS[fault](self.layout, self.layout.services[part]):
                    yield

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """The address of the balancer, or of the second balancer during its replacement."""
        return [("127.0.0.1", self._port)]

    def move(self, port: int) -> None:
        """Send callers to `port` from now on."""
        self._port = port

    def inside(self) -> AbstractContextManager[None]:
        """Do nothing: this machine reaches the balancer."""
        return nullcontext()

    def unwell(self) -> Sequence[str]:
        """Return the services that are unhealthy."""
        return self.layout.unhealthy()

    def billed(self, since: float) -> Sequence[LedgerRow]:
        """Return the ledger's requests since a time."""
        return ledger_rows(self.layout.ask_ledger(LEDGER_QUERY.format(since=int(since * 1e9))))

    def counters(self) -> Mapping[str, float]:
        """Return the requests of each gateway that can be reached."""
        return self.layout.requests()

    def restore(self) -> None:
        """Replace containers that a fault left unhealthy."""
        self._port = BALANCER_PORT
        run("rm", "--force", "--ignore", f"{PREFIX}load-balancer-next")
        self.layout.restart_unhealthy()


@contextmanager
def failures() -> Iterator[None]:
    """Raise every failure of the layout as a `TopologyError`."""
    try:
        yield
    except (OSError, AssertionError, subprocess.SubprocessError, httpx.HTTPError) as error:
        raise TopologyError(f"{type(error).__name__}: {error}") from error


# --- Faults of one container


@contextmanager
def _kill(layout: Layout, service: Service) -> Iterator[None]:
    former = inspect(service.container)
    os.kill(former.pid, signal.SIGKILL)
    yield

    def is_back() -> bool:
        now = inspect(service.container)
        return now.status == "running" and now.pid not in (0, former.pid)

    what = f"the engine restarted {service.name}"
    wait_until(is_back, within=_RESTART, what=what, every=_LOOK)
    layout.until_healthy([service.name], within=_START)


@contextmanager
def _stop(layout: Layout, service: Service, *, grace: int = -1) -> Iterator[None]:
    """Stop it, with its own time to end or another one. The engine does not start it again."""
    grace = service.grace if grace < 0 else grace
    run("stop", "--time", str(grace), service.container, timeout=grace + 60)
    yield
    layout.start([service.name])


@contextmanager
def _freeze(layout: Layout, service: Service) -> Iterator[None]:  # noqa: ARG001 - as the others
    run("pause", service.container)
    yield
    run("unpause", service.container)


@contextmanager
def _full(layout: Layout, service: Service) -> Iterator[None]:  # noqa: ARG001 - as the others
    if service.disk is None:
        raise TopologyError(f"{service.name} has no disk")
    path = service.disk / _FILE
    _fill(path)
    try:
        with repeating(lambda: _fill(path)):
            yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _address(layout: Layout, service: Service) -> Iterator[None]:
    before = inspect(service.container).address
    services.discard(service)
    yield
    services.start(service)
    now = inspect(service.container).address
    if kept := [network for network, address in before.items() if now[network] == address]:
        raise TopologyError(f"{service.name} has its old address in {', '.join(kept)}")
    layout.until_healthy([service.name], within=_START)


@contextmanager
def _replace(layout: Layout, service: Service) -> Iterator[None]:
    changed = msgspec.structs.replace(service, image=procedures.next_version(service))
    former = inspect(service.container)
    services.discard(service)
    yield
    services.start(changed, former=former)
    layout.until_healthy([service.name], within=_START)


@contextmanager
def _cut_network(layout: Layout, network: str) -> Iterator[None]:
    """Drop all TCP packets between the containers of a network.

    Look-ups of names use UDP and still work, as with Docker, where each container has its own
    server.
    """
    members = [s for s in layout.services.values() if network in s.networks and not s.ends]
    (found,) = msgspec.json.decode(run("network", "inspect", PREFIX + network))
    subnet = found["subnets"][0]["subnet"]
    to, away = ["INPUT", "--source", subnet], ["OUTPUT", "--destination", subnet]
    with _dropping(members, [*to, "--protocol", "tcp"], [*away, "--protocol", "tcp"]):
        yield
    layout.until_healthy([each.name for each in members])


@contextmanager
def _dropping(chosen: Sequence[Service], *rules: Sequence[str]) -> Iterator[None]:
    """Drop packets by firewall rules in containers."""
    pids = [inspect(each.container).pid for each in chosen]

    def change(action: str) -> None:
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                for rule in rules:
                    command = ("nsenter", f"--target={pid}", "--net", "iptables", "--wait", action)
                    subprocess.run([*command, *rule, "--jump", "DROP"], check=True)

    change("--insert")
    try:
        yield
    finally:
        change("--delete")


def _fill(path: Path) -> float:
    """Fill the disk; return the seconds until it is to be filled again."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        size = len(_CHUNK)
        while size:
            try:
                file.write(_CHUNK[:size])
            except OSError:  # no room for so much
                size //= 2
        os.fsync(file.fileno())
    return 1.0


_FAULTS: Mapping[str, Callable[[Layout, Service], AbstractContextManager[None]]] = {
    "kill": _kill,
    "stop": _stop,
    "lose": partial(_stop, grace=0),
    "freeze": _freeze,
    "cut-in": lambda _, each: _dropping([each], ["INPUT", "!", "--in-interface", "lo"]),
    "cut-out": lambda _, each: _dropping([each], ["OUTPUT", "!", "--out-interface", "lo"]),
    "full": _full,
    "address": _address,
    "replace": _replace,
}


_PROCEDURES: Mapping[str, Callable[[Containers], Iterator[procedures.Step]]] = {
    "rotation": lambda topology: procedures.rotation(topology.layout),
    "upgrade": lambda topology: procedures.upgrade(topology.layout, PRESENT, topology.move),
    # Checks do these, once the load is over.
    "restore": lambda _: iter(()),
    "start": lambda _: iter(()),
}


# --- Checks


def all_gateways_serve(case: Case) -> Iterator[str]:
    """Find gateways that are given no requests once everything works again."""
    well, end = case.counters["well"], case.counters["end"]
    gateways = [name for name in case.topology.layout.services if name.startswith("gateway-")]
    for name in gateways:
        if end.get(name, 0.0) <= well.get(name, 0.0):
            yield f"{name} is given no requests, or does not tell"


def memory(case: Case) -> Iterator[str]:
    """Find processes whose memory was above the bound of their kind."""
    largest = dict.fromkeys(MEMORY_MIB, 0)
    for name, service in case.topology.layout.services.items():
        if (kind := name.split("-", maxsplit=1)[0]) in MEMORY_MIB:
            pids = run("top", service.container, "hpid", check=False).split()[1:]
            largest[kind] = max([largest[kind], *map(peak_mib, map(int, pids))])
    case.figures["memory_mib"] = largest
    for kind, size in largest.items():
        if not size:
            yield f"no process of `{kind}` was found"
        if size > MEMORY_MIB[kind]:
            yield f"a process of `{kind}` had {size} MiB"


def started(case: Case) -> Iterator[str]:
    """Find a slow start, and images that hold tools."""
    layout = case.topology.layout
    case.figures["started_in"] = round(case.topology.started_in, 1)
    if case.topology.started_in > _HEALTHY:
        yield f"the layout was healthy after {case.topology.started_in:.0f} s"
    for image in sorted({s.image for s in layout.services.values() if "localhost/" in s.image}):
        if found := [*images.tools_in(image)]:
            yield f"`{image}` holds {', '.join(found)}"


def observed(case: Case) -> Iterator[str]:
    """Find metrics and spans that do not arrive."""
    layout = case.topology.layout
    url = layout.url("prometheus", 9090) + "/api/v1/query"

    def targets() -> int:
        found = httpx.get(url, params={"query": "up == 1"}, timeout=10.0).json()
        return len(found["data"]["result"])

    try:
        wait_until(lambda: targets() >= _TARGETS, every=_LOOK)
    except (AssertionError, httpx.HTTPError):
        yield "Prometheus does not read every target"
    spans = httpx.get(layout.url("otel-collector", 4318) + "/counted", timeout=10.0)
    is_stand_in = spans.headers.get("content-type") == "application/json"
    if is_stand_in and not spans.json()["requests"]:
        yield "no spans arrive at the collector"


def restored(case: Case) -> Iterator[str]:
    """Back up and restore, and find what differs."""
    layout = case.topology.layout
    with failures():
        yield from procedures.restore(layout)
        if not procedures.accepts(case.topology.keys):
            yield "keys are not accepted after the restore"


def _fault(
    name: str,
    what: str,
    undo: str,
    *,
    hold: float = 0.0,
    windows: Mapping[str, Window] | None = None,
    load: LoadSpec = _LOAD,
    setup: object = None,
    checks: tuple[Callable[[Case], Iterator[str]], ...] = (memory, all_gateways_serve),
) -> Fault:
    return Fault(
        name=name, what=what, undo=undo, topologies=("containers",), hold=hold,
        windows=windows or {}, load=load, setup=setup, checks=checks,
    )  # fmt: skip


_BRIEF = _BALANCER_AWAY | {"gateway": Window(after_begin=3)}
FAULTS = (
    _fault("kill", "SIGKILL to a container", "the engine restarts it", windows=_BRIEF),
    _fault("stop", "SIGTERM to a container", "it is started", hold=10.0, windows=_BALANCER_AWAY),
    _fault("freeze", "its processes are paused", "they go on", hold=30.0, windows=_SILENT),
    _fault("cut-in", "packets to it are dropped", "they pass", hold=90.0, windows=_SILENT),
    _fault("cut-out", "packets from it are dropped", "they pass", hold=90.0, windows=_SILENT),
    _fault("full", "its volume is full", "the space is freed", hold=45.0,
           # No answer without a usage event: `event_log_unavailable`.
           windows={"gateway": Window(is_open=True, after_end=10)}),
    _fault("address", "it is removed", "it is created at another address", windows=_BALANCER_AWAY),
    _fault("replace", "it is removed", "its next version is created", windows=_BALANCER_AWAY),
    _fault("rolling", "both containers are replaced in turn", "nothing"),
    _fault("lose", "SIGKILL to a container that stays away", "it is started", hold=10.0,
           windows=_LOST, load=_SLOW),
    _fault("cut-network", "packets of a network are dropped", "they pass", hold=10.0,
           windows=_LOST, load=_SLOW),
    _fault("start", "nothing: the layout started from empty volumes", "nothing", load=_SLOW,
           checks=(memory, started, observed)),
    _fault("rotation", "the backend token and the admin key are replaced", "nothing", load=_SLOW),
    _fault("restore", "after the load a backup is restored into empty volumes", "nothing",
           load=_SLOW, checks=(restored,)),
    _fault("upgrade", "the former release is upgraded, container by container", "nothing",
           load=_SLOW, setup=FORMER, checks=(memory, all_gateways_serve, observed)),
)  # fmt: skip
