"""Runs the topology `processes`: gateways, backends behind proxies, billing, and two Redis."""

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import product
from pathlib import Path
from typing import Any  # Any: sections of a document, values of rows

import httpx
import msgspec
import psycopg
from typing_extensions import override

from loadtests.faults.children import BackendSpec, Child, PacedBackend, gateway_process, runs
from loadtests.faults.disk import Disk
from loadtests.faults.judge import LIMITED
from loadtests.faults.model import ModelOracle
from loadtests.faults.topology import Topology, TopologyError, client_of, counted
from loadtests.gateway import Gateway, add_tenants
from sluicegate.gateway.types import Rule
from testing.loopback import get
from testing.namespaces import NamespaceNetwork, missing
from testing.postgresql import USER, PostgreSQLPair, programs
from testing.prometheus import running_prometheus
from testing.redis_deployments import SentinelDeployment, sentinel_deployment
from testing.valkey import Valkey
from testing.waiting import wait_until
from tools.monitoring.files import RULES

RULE = Rule(name="minute", unit="requests", capacity=100, window=6.0)
SHARE, STATE_TIMEOUT = 0.1, 1.0
OPERATED = 2
"""So many gateways, at most, have an admin listener, a billing process and a request log."""
_ADMIN_KEY = "admin-key-of-the-faults"
_FREE = (Rule(name="plenty", unit="requests", capacity=10**9, window=1.0),)
_COUNTERS = {
    "computed": 'dispatched_items_total{outcome="computed"}',
    "failed": 'dispatched_items_total{outcome="failed"}',
    "retried": "retries_total",
    "hedged": "hedges_total",
    "cache breaker": 'breaker_openings_total{dependency="cache_redis"}',
    "state breaker": 'breaker_openings_total{dependency="state_redis"}',
}
TWO_BY_TWO = tuple(
    BackendSpec(name=f"{region}-{number}", region=region)
    for region in ("eu", "us")
    for number in range(2)
)
WITH_A_LIMIT = ("north", "south", f"{LIMITED}0")
"""The ids of three tenants, of which one has a limit."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of the topology."""

    backends: tuple[BackendSpec, ...] = TWO_BY_TWO
    gateways: int = 1
    workers: int = 2
    """Workers of each gateway."""
    sentinels: tuple[str, ...] = ()
    """Which of the Redis `cache` and `state` are under Sentinels. The others are single servers."""
    tenants: tuple[str, ...] = ("north", "south")
    """Ids of tenants. The limit `RULE` is for tenants whose id begins with `LIMITED`."""
    document: Mapping[str, Any] = {}
    is_mixed: bool = False
    """Whether the load also asks an algorithm, and sends invalid and large requests."""
    batches: bool = False
    """Whether the gateway runs batch jobs."""
    disk_bytes: int = 0
    """Size of a file system for the data directory, which needs root. If 0, the directory is an
    ordinary folder."""
    is_scraped: bool = False
    """Whether Prometheus scrapes everything and evaluates the rules, every 15 s."""
    has_standby: bool = False
    """Whether the ledger is a PostgreSQL with a standby. Then all processes are in one network
    namespace, in which packets can be dropped, and which needs root."""


class Processes(Topology):
    """Gateways, backends, billing and the request log, as processes on this machine."""

    oracle: ModelOracle

    def __init__(self, folder: Path, setup: Setup | None = None) -> None:
        super().__init__()
        self.setup = setup or Setup()
        self._folder = folder
        self.keys = {tenant: f"sk-{secrets.token_hex(12)}" for tenant in self.setup.tenants}
        self.backends: dict[str, PacedBackend] = {}
        self.consumers: dict[str, Child] = {}
        self.redis: dict[str, Valkey | SentinelDeployment] = {}

    @override
    def start(self, stack: ExitStack) -> None:
        ledger_url = self._start_ledger(stack)
        self._start_backends(stack)
        cache, state = (self._start_redis(stack, name) for name in ("cache", "state"))
        self.gateways = [
            self._gateway(number, cache_url=cache, state_url=state, ledger_url=ledger_url)
            for number in range(self.setup.gateways)
        ]
        self.gateway = self.gateways[0]
        self.addresses = [("127.0.0.1", gateway.port) for gateway in self.gateways]
        settings = self.gateway.settings
        if size := self.setup.disk_bytes:
            self.disk = stack.enter_context(Disk(self._folder, settings.data_dir, size))
        create_tenants(settings.ledger, self.keys)
        self.wait_for_backends()
        for gateway in self.gateways:
            stack.enter_context(gateway)
        self._start_consumers(stack)
        if self.setup.is_scraped:
            prometheus = running_prometheus(self._scrapes(), interval="15s", rules=RULES)
            self.prometheus = stack.enter_context(prometheus)
        self._started = [gateway.processes() for gateway in self.gateways]

    @override
    def unwell(self) -> Sequence[str]:
        found = [f"backend {name}" for name, each in self.backends.items() if not each.is_ready()]
        found += [name for name, each in self.consumers.items() if not runs(each.pid)]
        for gateway, started in zip(self.gateways, self._started, strict=True):
            with suppress(FileNotFoundError):
                running = gateway.processes()
                found += [name for name in started if not runs(running.get(name, 0))]
            try:
                ready = get(f"http://127.0.0.1:{gateway.port}/health/ready", timeout=2.0).json()
                found += [f"gateway: {each}" for each in ready["missing"] + ready["degraded"]]
            except httpx.TransportError:
                found.append("gateway")
        return found

    @override
    def counters(self) -> Mapping[str, float]:
        """Return metrics of the dispatcher and of breakers."""
        with self.admin() as admin:
            return counted(admin, _COUNTERS)

    @override
    def ask_ledger(self, query: str) -> list[tuple[Any, ...]]:
        if self.setup.has_standby:
            return ask_postgresql("127.0.0.1", self.ledger.primary.port, query)
        path = self.gateway.settings.ledger.removeprefix("sqlite:///")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60.0)) as database:
            return database.execute(query).fetchall()

    def admin(self, number: int = 0) -> httpx.Client:
        """Return a client of a gateway's admin listener."""
        return client_of(
            f"http://127.0.0.1:{self.gateways[number].settings.admin_port}", _ADMIN_KEY
        )

    def client(self) -> httpx.Client:
        """Return a client of the tenant `north`."""
        return client_of(f"http://127.0.0.1:{self.gateway.port}", self.keys["north"], timeout=120.0)

    def pids(self) -> dict[str, int]:
        """Return the ids of the product's processes, by role and number."""
        found = self.gateway.processes() | {name: c.pid for name, c in self.consumers.items()}
        return found | {f"backend {name}": each.pid for name, each in self.backends.items()}

    def members(self, part: str) -> list[Valkey | Child | Gateway]:
        """Return the processes of a part, such as `region eu` or `cache and state`."""
        found: list[Valkey | Child | Gateway] = []
        for each in part.split(" and "):
            if each == "gateway":
                found.append(self.gateway)
            elif each in self.consumers:
                found.append(self.consumers[each])
            else:
                found += [self.server(each)] if each in self.redis else self.backends_of(each)
        return found

    def backends_of(self, part: str) -> list[PacedBackend]:
        """Return the backends that a part names: `backend eu-0`, `region eu`, or `backends`."""
        kind, _, name = part.partition(" ")
        return [
            each
            for each in self.backends.values()
            if kind == "backends" or name in (each.spec.name, each.spec.region)
        ]

    def server(self, part: str) -> Valkey:
        """Return the Redis `cache` or `state`, which must be a single server."""
        redis = self.redis[part]
        if not isinstance(redis, Valkey):
            raise TopologyError(f"`{part}` is not a single server")
        return redis

    def sentinels(self, part: str) -> SentinelDeployment:
        """Return the Redis `cache` or `state`, which must be under Sentinels."""
        redis = self.redis[part]
        if not isinstance(redis, SentinelDeployment):
            raise TopologyError(f"`{part}` has no Sentinels")
        return redis

    def wait_for_backends(self) -> None:
        """Wait until all backends are ready."""
        for name, each in self.backends.items():
            wait_until(each.is_ready, what=f"backend {name} is ready", every=0.05)

    def _start_ledger(self, stack: ExitStack) -> str:
        """Return the URL of the ledger; "" for a file in the data directory."""
        if self.setup.has_standby:
            if reason := lacks_programs():
                raise TopologyError(reason)
            network = stack.enter_context(NamespaceNetwork(("all",)))
            stack.enter_context(network.inside("all"))
            self.ledger = stack.enter_context(PostgreSQLPair())
            return self.ledger.url
        # The ledger must survive the loss of the disk.
        return f"sqlite:///{self._folder / 'ledger.db'}" if self.setup.disk_bytes else ""

    def _start_backends(self, stack: ExitStack) -> None:
        for spec in self.setup.backends:
            models, is_mixed = self._folder / "models", self.setup.is_mixed
            backend = PacedBackend(spec, models, has_algorithm=is_mixed)
            self.backends[spec.name] = backend
            stack.callback(backend.kill)
            backend.start()
        roots = [each.models for each in self.backends.values()]
        self.oracle = ModelOracle(roots, is_mixed=self.setup.is_mixed)

    def _gateway(self, number: int, **urls: str) -> Gateway:
        is_operated = number < OPERATED
        return Gateway(
            self._folder / f"gateway-{number}",
            self._document(),
            workers=self.setup.workers,
            admin=is_operated,
            admin_key=_ADMIN_KEY if is_operated else "",
            batches=self.setup.batches,
            state_timeout=STATE_TIMEOUT,
            secret="shared-by-all-gateways",  # noqa: S106 - of this run
            shutdown_delay=0.0,
            **urls,  # type: ignore[arg-type]
        )

    def _start_consumers(self, stack: ExitStack) -> None:
        for gateway, role in product(self.gateways[:OPERATED], ("billing", "request-log")):
            settings, first = gateway.settings, role not in self.consumers
            name = role if first else f"{role}-2"
            # With a disk of its own, the gateway stands for a separate machine.
            folder = self._folder / role if self.setup.disk_bytes else settings.data_dir
            own = msgspec.structs.replace(settings, data_dir=folder, worker=name)
            consumer = self.consumers[name] = gateway_process(role, own)
            stack.callback(consumer.stop)
            consumer.start()

    def _start_redis(self, stack: ExitStack, name: str) -> str:
        """Start the Redis `cache` or `state`, and return its URL."""
        # Confirmed writes must survive a crash.
        options = ("--appendonly", "yes") if name == "state" else ()
        if name in self.setup.sentinels:
            # A primary without replicas must refuse writes.
            options = (*options, "--min-replicas-to-write", "1")
            deployment = sentinel_deployment(*options, replicas=2, sentinels=3, down_after=1.5)
            self.redis[name] = sentinels = stack.enter_context(deployment)
            return sentinels.url
        self.redis[name] = valkey = stack.enter_context(Valkey(*options))
        return valkey.url

    def _document(self) -> dict[str, Any]:
        """Return the configuration document: a pool in each region."""
        regions: dict[str, list[Any]] = {}
        for backend in self.backends.values():
            spec = backend.spec
            regions.setdefault(spec.region, []).append({"id": spec.name, "url": backend.url})
        written = [
            {"name": name, "pools": [{"name": "main", "backends": backends}]}
            for name, backends in regions.items()
        ]
        return {"regions": written, "limits": {"local_share": SHARE}} | dict(self.setup.document)

    def _scrapes(self) -> list[Mapping[str, Any]]:
        """Return the targets of Prometheus, with the job names of deploy/prometheus.yaml."""
        jobs = {
            "gateway": [f"127.0.0.1:{self.gateway.settings.admin_port}"],
            "backend": [f"127.0.0.1:{each.port}" for each in self.backends.values()],
        }
        authorization = {"credentials": _ADMIN_KEY}
        return [
            {"job_name": name, "authorization": authorization, "static_configs": [{"targets": t}]}
            for name, t in jobs.items()
        ]


def create_tenants(url: str, keys: Mapping[str, str]) -> None:
    """Create the ledger at `url`, and tenants with one API key each."""
    limited = {tenant: key for tenant, key in keys.items() if tenant.startswith(LIMITED)}
    add_tenants(url, limited, rules=(RULE,))
    add_tenants(url, {t: key for t, key in keys.items() if t not in limited}, rules=_FREE)


def lacks_programs() -> str:
    """Return what this machine lacks for network namespaces and PostgreSQL; empty if nothing."""
    return missing() or ("" if programs() else "PostgreSQL is not installed (make install-system)")


def ask_postgresql(host: str, port: int, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query to a ledger on PostgreSQL."""
    place = f"host={host} port={port} user={USER} dbname=postgres"
    with psycopg.connect(place, connect_timeout=3) as connection:
        return connection.execute(query.encode()).fetchall()
