"""Runs each process in its own network namespace, and drops packets between two of them."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any  # values of rows

import httpx
import msgspec
import psycopg
from typing_extensions import override

from gateway.settings import Settings
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from loadtests.faults.catalogue import Act, Case, Fault, LoadSpec
from loadtests.faults.children import BackendSpec, Child, PacedBackend, gateway_process
from loadtests.faults.judge import Window
from loadtests.faults.model import ModelOracle
from loadtests.faults.processes import create_tenants, runs
from loadtests.faults.topology import Topology, TopologyError
from loadtests.machine import busy_seconds
from loadtests.process_resources import peak_mib
from testing.loopback import no_authorities
from testing.namespaces import NamespaceNetwork, missing
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
_AS_ADMIN = {"authorization": f"Bearer {_ADMIN_KEY}"}
_TOKEN = "a-token-of-the-namespaces"  # noqa: S105 - between processes of one run
_MEMORY_MIB, _BUSY = 512, 0.6
"""The most memory in MiB, and the largest share of a core, that a process may use during a
fault."""
_PORT, _ADMIN_PORT, _BACKEND_PORT, _REDIS_PORT, _LEDGER_PORT = 8080, 8081, 8100, 6379, 5432
_START, _LOOK = 120.0, 0.1
_REQUESTS = re.compile(r"^sluicegate_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)


def lacks_programs() -> str:
    """Return what this machine lacks for network namespaces and PostgreSQL; empty if nothing."""
    return missing() or ("" if programs() else "PostgreSQL is not installed (make install-system)")


class Namespaces(Topology):
    """A gateway, two backends, two Redis and PostgreSQL, each process in a network namespace."""

    def __init__(self, folder: Path, *, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE) -> None:
        super().__init__()
        self._folder = folder
        self._keepalive = keepalive
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
        stack.enter_context(self.inside())
        self._client = stack.enter_context(httpx.Client(timeout=2.0, verify=no_authorities()))
        self._settings = self._make_settings()
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
        try:
            yield
        finally:
            self._network.restore_traffic()
            self._due = self._requests()

    @override
    def inside(self) -> AbstractContextManager[None]:
        return self._network.inside("client")

    @override
    def unwell(self) -> Sequence[str]:
        """Return the processes that have ended, are not ready, or are late with their work."""
        found = [name for name, pid in self.pids.items() if not runs(pid)]
        admin = f"http://{self._settings.admin_host}:{_ADMIN_PORT}"
        gateway = f"http://{self._settings.host}:{_PORT}"
        ready = (f"{gateway}/health/ready", f"{admin}/health/ready")
        for url in (*ready, f"{admin}/admin/regions"):
            try:
                answer = self._client.get(url, headers=_AS_ADMIN)
                if not answer.is_success or (url in ready and answer.json()["degraded"]):
                    found.append(f"{url}: {answer.text}")
            except (httpx.HTTPError, ValueError) as error:
                found.append(f"{url}: {type(error).__name__}")
        if not found and self._billed() < self._due:
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
    def restore(self) -> None:
        self._network.restore_traffic()

    @override
    def ask_ledger(self, query: str) -> list[tuple[Any, ...]]:
        place = f"host={self._network.address('ledger')} user={USER} dbname=postgres"
        with psycopg.connect(place, connect_timeout=2) as connection:
            return connection.execute(query.encode()).fetchall()

    def logged(self) -> int:
        """Return the lines of the request log."""
        files = self._settings.data_dir.glob("requests.log*")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def _requests(self) -> float:
        """Return how many requests the gateway's metrics count; 0 if its metrics cannot be read."""
        url = f"http://{self._settings.admin_host}:{_ADMIN_PORT}/metrics"
        with contextlib.suppress(httpx.HTTPError):
            page = self._client.get(url, headers=_AS_ADMIN).raise_for_status().text
            return sum(map(float, _REQUESTS.findall(page)))
        return 0.0

    def _billed(self) -> float:
        ((found,),) = self.ask_ledger("SELECT coalesce(sum(requests), 0) FROM usage_events")
        return float(found)

    def _make_settings(self) -> Settings:
        at, keepalive = self._network.address, self._keepalive
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
            tcp_keepalive_idle=keepalive.idle,
            tcp_keepalive_interval=keepalive.interval,
            tcp_keepalive_count=keepalive.count,
            tcp_user_timeout=keepalive.user_timeout,
            # Workers must not refuse requests because the machine does other work.
            max_loop_delay=0.0,
        )

    def _write_configuration(self, backends: Sequence[PacedBackend]) -> None:
        regions = [
            {
                "name": each.spec.region,
                "pools": [{"backends": [{"id": each.spec.name, "url": each.url}]}],
            }
            for each in backends
        ]
        self._settings.config.mkdir(parents=True)
        # JSON is YAML.
        content = msgspec.json.encode({"regions": regions})
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
        folder, address = programs(), self._network.address("ledger")
        if folder is None:
            raise TopologyError("PostgreSQL is not installed")
        home = new_directory()
        stack.callback(shutil.rmtree, home)
        data = home / "ledger/data"
        node = PostgreSQLNode(folder, data.parent, port=_LEDGER_PORT, listens=address)
        node.initialize()
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all samenet trust\n")
        stack.callback(node.end)
        with self._network.inside("ledger"):
            node.start()
        self.pids["ledger"] = int((data / "postmaster.pid").read_text().split()[0])


def nobody_suffers(case: Case) -> Iterator[str]:
    """Find requests without an answer or log line, and processes that used too much memory.

    Processes that used too much CPU time are found, too.
    """
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
    Fault(
        name=f"drop-{direction}{'-long' if hold > 5 else ''}",
        what=f"drops the packets between two processes {said}",
        undo="they pass",
        topology="namespaces",
        act=_parting(direction),
        parts=PAIRS,
        hold=hold,
        # No model can be reached, so only requests that the cache can answer succeed.
        windows={"backends": Window(is_open=True, after_end=10)},
        load=LoadSpec(rate=20.0, hasty=0.0),
        checks=(nobody_suffers,),
    )
    for hold in (5.0, 120.0)
    for direction, said in _DIRECTIONS.items()
)
