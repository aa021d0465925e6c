"""Runs each process in its own network namespace, and drops packets between two of them."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any  # values of rows and settings

import httpx
import msgspec
from typing_extensions import override

from loadtests.faults.catalogue import Act, Case, Fault, LoadSpec
from loadtests.faults.children import BackendSpec, Child, PacedBackend, gateway_process, runs
from loadtests.faults.judge import Window
from loadtests.faults.model import ModelOracle
from loadtests.faults.processes import ask_postgresql, create_tenants, lacks_programs
from loadtests.faults.topology import Topology, TopologyError, client_of, counted
from loadtests.gateway import one_backend
from loadtests.machine import busy_seconds
from loadtests.process_resources import peak_mib
from sluicegate.gateway.settings import Settings
from testing.namespaces import NamespaceNetwork
from testing.postgresql import USER, PostgreSQLNode, new_directory, programs
from testing.valkey import Valkey
from testing.waiting import wait_until

_BACKENDS = ("eu-0", "us-0")
_OWN = {
    "gateway": "worker",
    "admin": "admin",
    "shipper": "shipper",
    "billing": "billing",
    "request-log": "request-log",
}
"""The gateway's processes by member of the network, with their roles."""
_REDIS = {
    "state": ("--maxmemory-policy", "noeviction"),
    "cache": ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lfu"),
}
_CLIENTS: Mapping[str, tuple[str, ...]] = {
    "state": ("gateway", "admin", "shipper", "billing", "request-log"),
    "cache": ("gateway", "admin"),
    "eu-0": ("gateway",),
    "backends": ("gateway",),
    "ledger": ("gateway", "admin", "shipper", "billing"),
}
"""The members that open connections to each server, or to all `backends`."""
PAIRS = tuple(f"{server} from {client}" for server in _CLIENTS for client in _CLIENTS[server])
_ADMIN_KEY = "admin-key-of-the-namespaces"
_TOKEN = "a-token-of-the-namespaces"  # noqa: S105 - between processes of one run
_MEMORY_MIB, _BUSY = 512, 0.6
"""The most memory in MiB, and the largest share of a core, that a process may use during a
fault."""
_PORT, _ADMIN_PORT, _BACKEND_PORT, _REDIS_PORT, _LEDGER_PORT = 8080, 8081, 8100, 6379, 5432
_START, _LOOK = 120.0, 0.1


class Namespaces(Topology):
    """A gateway, two backends, two Redis and PostgreSQL, each process in a network namespace."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__()
        self._folder = folder
        self._own_settings = settings
        self.keys = {"north": "sk-north-of-namespaces", "south": "sk-south-of-namespaces"}
        self.pids: dict[str, int] = {}
        self._due = 0.0
        """The requests that billing and the request log must have before everything is well."""

    @override
    def start(self, stack: ExitStack) -> None:
        if reason := lacks_programs():
            raise TopologyError(reason)
        members = ("client", *_OWN, *_BACKENDS, *_REDIS, "ledger")
        self._network = stack.enter_context(NamespaceNetwork(members))
        stack.enter_context(self._network.inside("client"))
        self._settings = self._make_settings()
        admin = f"http://{self._settings.admin_host}:{_ADMIN_PORT}"
        self._admin = stack.enter_context(client_of(admin, _ADMIN_KEY, timeout=2.0))
        self.addresses = [(self._settings.host, self._settings.port)]
        self._start_servers(stack)
        create_tenants(self._settings.ledger, self.keys)
        backends = []
        for name in _BACKENDS:
            spec = BackendSpec(name=name, region=name[:2], settings={"token": _TOKEN})
            address = self._network.address(name)
            backend = PacedBackend(spec, self._folder, host=address, port=_BACKEND_PORT)
            backends.append(backend)
            self._start_child(stack, name, backend)
        self.oracle = ModelOracle([each.models for each in backends])
        self._write_configuration(backends)
        for name, role in _OWN.items():
            key = _ADMIN_KEY if name == "admin" else ""
            own = msgspec.structs.replace(self._settings, worker=name, admin_key=key)
            self._start_child(stack, name, gateway_process(role, own))
        wait_until(lambda: not self.unwell(), within=_START, what="all is well", every=_LOOK)
        # Workers must not refuse requests because the machine does other work.
        for name in ("shipper", "billing", "request-log"):
            own_priority = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, self.pids[name], own_priority)

    @contextmanager
    def parted(self, pairs: str, direction: str) -> Iterator[None]:
        """Drop packets between the two members of each pair in `pairs`, which is separated by `; `.

        `direction` applies to the first pair. Between other pairs, packets are dropped in both
        directions.
        """
        for pair in pairs.split("; "):
            server, client = pair.split(" from ")
            for each in _BACKENDS if server == "backends" else (server,):
                if direction != "back":
                    self._network.drop(client, each)
                if direction != "forth":
                    self._network.drop(each, client)
            direction = "both"
        yield
        self._network.restore_traffic()
        self._due = counted(self._admin, {"requests": "requests_total"})["requests"]

    @override
    def unwell(self) -> Sequence[str]:
        """Return the processes that have ended, are not ready, or are late with their work."""
        found = [name for name, pid in self.pids.items() if not runs(pid)]
        ready = (f"http://{self._settings.host}:{_PORT}/health/ready", "/health/ready")
        for url in (*ready, "/admin/regions"):
            try:
                answer = self._admin.get(url)
                if not answer.is_success or (url in ready and answer.json()["degraded"]):
                    found.append(f"{url}: {answer.text}")
            except (httpx.HTTPError, ValueError) as error:
                found.append(f"{url}: {type(error).__name__}")
        billed = "SELECT coalesce(sum(requests), 0) FROM usage_events"
        if not found and self.ask_ledger(billed)[0][0] < self._due:
            found.append("billing")
        if not found and self.logged() < self._due:
            found.append("request-log")
        return found

    @override
    def counters(self) -> Mapping[str, float]:
        """Return the counts of requests and of logged requests, and each process's CPU time."""
        busy = {f"busy {name}": busy_seconds(p) for name, p in self.pids.items() if runs(p)}
        return {"time": time.monotonic(), "logged": float(self.logged())} | busy

    @override
    def ask_ledger(self, query: str) -> list[tuple[Any, ...]]:
        return ask_postgresql(self._network.address("ledger"), _LEDGER_PORT, query)

    def logged(self) -> int:
        """Return the lines of the request log."""
        files = self._settings.data_dir.glob("requests.log*")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def _make_settings(self) -> Settings:
        at = self._network.address
        return Settings(
            data_dir=self._folder / "data",
            config=self._folder / "config",
            state_url=f"redis://{at('state')}:{_REDIS_PORT}/0",
            cache_url=f"redis://{at('cache')}:{_REDIS_PORT}/0",
            ledger_url=f"postgresql+psycopg://{USER}@{at('ledger')}/postgres",
            host=at("gateway"),
            port=_PORT,
            admin_host=at("admin"),
            admin_port=_ADMIN_PORT,
            backend_token=_TOKEN,
            # Workers must not refuse requests because the machine does other work.
            max_loop_delay=0.0,
            **self._own_settings,
        )

    def _write_configuration(self, backends: Sequence[PacedBackend]) -> None:
        documents = [
            one_backend(each.url, backend_id=each.spec.name, region=each.spec.region)
            for each in backends
        ]
        regions = [region for document in documents for region in document["regions"]]
        self._settings.config.mkdir(parents=True)
        content = msgspec.json.encode({"regions": regions})  # JSON is YAML
        (self._settings.config / "gateway.yaml").write_bytes(content)
        self._settings.metrics_dir.mkdir(parents=True)

    def _start_child(self, stack: ExitStack, name: str, child: Child) -> None:
        with self._network.inside(name):
            child.start()
        stack.callback(child.kill)
        self.pids[name] = child.pid

    def _start_servers(self, stack: ExitStack) -> None:
        """Start both Redis, and a PostgreSQL that trusts every machine of the network."""
        for name, options in _REDIS.items():
            place = ("--bind", self._network.address(name), "--protected-mode", "no")
            redis = Valkey(*place, *options, port=_REDIS_PORT)
            with self._network.inside(name):
                stack.enter_context(redis)
            self.pids[name] = redis.pid
        folder = programs()
        assert folder is not None, "PostgreSQL is not installed"  # noqa: S101
        home, address = new_directory(), self._network.address("ledger")
        stack.callback(shutil.rmtree, home)
        node = PostgreSQLNode(folder, home / "ledger", port=_LEDGER_PORT, listens=address)
        node.initialize()
        data = home / "ledger/data"
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all samenet trust\n")
        stack.callback(node.end)
        with self._network.inside("ledger"):
            node.start()
        self.pids["ledger"] = int((data / "postmaster.pid").read_text().split()[0])


def nobody_suffers(case: Case) -> Iterator[str]:
    """Find requests without an answer or log line, and processes that used too much."""
    topology: Namespaces = case.topology
    # An idle time after the recovery would hide how busy the fault keeps a process.
    start, end = case.counters["start"], case.counters["well"]
    answered = sum(each.status != 0 for each in case.sent)
    if lost := len(case.sent) - answered:
        yield f"{lost} requests had no answer"
    due = start["logged"] + answered
    with contextlib.suppress(AssertionError):
        wait_until(lambda: topology.logged() >= due, within=_START, every=_LOOK)
    if topology.logged() != due:
        yield f"the request log has {topology.logged() - due:+.0f} requests"
    busy = {
        name.removeprefix("busy "): (spent - start[name]) / (end["time"] - start["time"])
        for name, spent in end.items()
        if name.startswith("busy ")
    }
    memory = {name: peak_mib(topology.pids[name]) for name in busy}
    case.figures.update(busiest=round(max(busy.values()), 2), memory_mib=max(memory.values()))
    yield from (f"{name} had {size} MiB" for name, size in memory.items() if size > _MEMORY_MIB)
    yield from (f"{name} kept {s:.2f} processors busy" for name, s in busy.items() if s > _BUSY)


def _parting(direction: str) -> Act:
    return lambda topology, part: topology.parted(part, direction)


_DIRECTIONS = {"both": "in both directions", "forth": "to the server", "back": "to the client"}
FAULTS = tuple(
    Fault(f"drop-{direction}{'-long' if hold > 5 else ''}",
          f"drops the packets between two processes {said}", "they pass", _parting(direction),
          PAIRS, "namespaces", hold=hold,
          # No model can be reached, so only requests that the cache can answer succeed.
          windows={"backends": Window(is_open=True, after_end=10)},
          load=LoadSpec(rate=20.0, hasty=0.0), checks=(nobody_suffers,))
    for hold in (5.0, 120.0)
    for direction, said in _DIRECTIONS.items()
)  # fmt: skip
