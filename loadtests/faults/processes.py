"""Runs the topology `processes`: a gateway, its backends behind proxies, and two Redis."""

import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal  # Any: sections of a document, a worker's report

import httpx
import msgspec
from anyio.from_thread import start_blocking_portal
from redis.exceptions import RedisError
from typing_extensions import override

from gateway.errors import DependencyUnavailable
from gateway.redis.client import connect
from gateway.runtime.control import Control
from gateway.types import Rule
from loadtests.faults.children import BackendSpec, Child, PacedBackend, gateway_process
from loadtests.faults.disk import Disk
from loadtests.faults.judge import LIMITED
from loadtests.faults.model import ModelOracle
from loadtests.faults.proxy import SOUND, ProxyFault
from loadtests.faults.topology import Topology, TopologyError
from loadtests.gateway import Gateway, add_tenants
from testing.delaying_proxy import DelayingProxy
from testing.loopback import get, no_authorities
from testing.prometheus import running_prometheus
from testing.redis_deployments import SentinelDeployment, sentinel_deployment
from testing.valkey import Valkey
from testing.waiting import wait_until
from tools.monitoring.files import RULES

RULE = Rule(name="minute", unit="requests", capacity=100, window=6.0)
SHARE, STATE_TIMEOUT = 0.1, 1.0
# Confirmed writes must survive a crash, and a primary without replicas must refuse writes.
DURABLE = ("--appendonly", "yes")
SENTINELS: Mapping[str, Any] = {"replicas": 2, "sentinels": 3, "down_after": 1.5}
_FREE = (Rule(name="plenty", unit="requests", capacity=10**9, window=1.0),)
_CONSUMERS = ("billing", "request-log")
_ADMIN_KEY = "admin-key-of-the-faults"
_DISPATCHED = ("computed", "failed", "retried", "hedged")
TWO_BY_TWO = tuple(
    BackendSpec(name=f"{region}-{number}", region=region)
    for region in ("eu", "us")
    for number in range(2)
)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of the topology.

    `redis` says whether each Redis is a single server, is behind a proxy that delays it, or is
    under Sentinels. `limited` is the number of tenants with the limit `RULE`.
    """

    backends: tuple[BackendSpec, ...] = TWO_BY_TWO
    workers: int = 2
    redis: Literal["single", "delayed", "sentinel"] = "single"
    limited: int = 0
    document: Mapping[str, Any] = {}
    is_mixed: bool = False
    """Whether the load also asks an algorithm, and sends invalid and large requests."""
    batches: bool = False
    """Whether the gateway runs batch jobs."""
    disk_bytes: int = 0
    """Size of a file system for the data directory, which needs root. If 0, the directory is an
    ordinary folder."""
    scrape_interval: str = ""
    """How often Prometheus scrapes everything and evaluates the rules, such as `15s`."""


class Processes(Topology):
    """A gateway, backends, billing and the request log, as processes on this machine."""

    oracle: ModelOracle

    def __init__(self, folder: Path, setup: Setup | None = None) -> None:
        super().__init__()
        self.setup = setup or Setup()
        self._folder = folder
        tenants = ["north", "south", *(f"{LIMITED}{n}" for n in range(self.setup.limited))]
        self.keys = {tenant: f"sk-{secrets.token_hex(12)}" for tenant in tenants}
        self.backends: dict[str, PacedBackend] = {}
        self.consumers: dict[str, Child] = {}
        self.redis: dict[str, Valkey | SentinelDeployment] = {}
        self.delays = {"cache": 0.0, "state": 0.0}
        """Seconds by which the replies of each Redis are late."""

    @override
    def start(self, stack: ExitStack) -> None:
        setup = self.setup
        self._portal = stack.enter_context(start_blocking_portal())
        for spec in setup.backends:
            backend = PacedBackend(spec, self._folder / "models", has_algorithm=setup.is_mixed)
            self.backends[spec.name] = backend
            stack.callback(backend.kill)
            backend.start()
            stack.enter_context(self._portal.wrap_async_context_manager(backend.proxy))
        models = [each.models for each in self.backends.values()]
        self.oracle = ModelOracle(models, is_mixed=setup.is_mixed)
        urls = {purpose: self._start_redis(stack, purpose) for purpose in ("cache", "state")}
        self._control_url = urls["state"]
        disk = setup.disk_bytes > 0
        self.gateway = Gateway(
            self._folder / "gateway",
            self._document(),
            workers=setup.workers,
            cache_url=urls["cache"],
            state_url=urls["state"],
            state_timeout=STATE_TIMEOUT,
            admin=True,
            admin_key=_ADMIN_KEY,
            batches=setup.batches,
            # The ledger must survive the loss of the disk.
            ledger_url=f"sqlite:///{self._folder / 'ledger.db'}" if disk else "",
        )
        settings = self.gateway.settings
        self.addresses = [("127.0.0.1", self.gateway.port)]
        if disk:
            self.disk = stack.enter_context(Disk(self._folder, settings.data_dir, setup.disk_bytes))
        create_tenants(settings.ledger, self.keys)
        self.wait_for_backends()
        stack.enter_context(self.gateway)
        for role in _CONSUMERS:
            # With a disk of its own, the gateway stands for a separate machine.
            folder = self._folder / role if disk else settings.data_dir
            own = msgspec.structs.replace(settings, data_dir=folder)
            consumer = self.consumers[role] = gateway_process(role, own)
            stack.callback(consumer.stop)
            consumer.start()
        if setup.scrape_interval:
            self.prometheus = stack.enter_context(
                running_prometheus([*self._scrapes()], interval=setup.scrape_interval, rules=RULES)
            )
        self._started = self.gateway.processes()
        for backend in self.backends.values():
            stack.callback(backend.resume)

    @override
    def unwell(self) -> Sequence[str]:
        found = [f"backend {name}" for name, each in self.backends.items() if not each.is_ready()]
        found += [role for role, each in self.consumers.items() if not each.runs()]
        with suppress(FileNotFoundError):
            running = self.gateway.processes()
            found += [name for name in self._started if not runs(running.get(name, 0))]
        try:
            ready = get(f"http://127.0.0.1:{self.gateway.port}/health/ready", timeout=2.0).json()
            return found + [f"gateway: {each}" for each in ready["missing"] + ready["degraded"]]
        except httpx.TransportError:
            return [*found, "gateway"]

    @override
    def counters(self) -> Mapping[str, float]:
        """Return the dispatcher's counters, the openings of breakers, and each backend's items."""
        found = dict.fromkeys((*_DISPATCHED, "cache breaker", "state breaker"), 0.0)
        for report in self._portal.call(self._reports):
            for name in _DISPATCHED:
                found[name] += report["dispatch"][name]
            found["cache breaker"] += report["cache"]["remote"]["breaker_opened"]
            found["state breaker"] += report["limits"]["breaker_opened"]
        items = {f"items {name}": float(each.proxy.items) for name, each in self.backends.items()}
        return found | items

    @override
    def restore(self) -> None:
        """End all faults of the proxies, and start the processes that do not run."""
        for backend in self.backends.values():
            self.set_fault(backend, SOUND)
            backend.resume()
            backend.start()
        with suppress(AssertionError):
            wait_until(lambda: not self.unwell(), within=30.0)
            return
        for redis in self.redis.values():
            if isinstance(redis, Valkey) and not redis.is_running:
                redis.start()
        for consumer in self.consumers.values():
            consumer.stop()
            consumer.start()
        self.gateway.kill()
        self.gateway.start()
        self._started = self.gateway.processes()
        wait_until(lambda: not self.unwell(), what="everything works again")

    @override
    def ask_ledger(self, query: str) -> list[Sequence[Any]]:
        path = self.gateway.settings.ledger.removeprefix("sqlite:///")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60.0)) as database:
            return database.execute(query).fetchall()

    def admin(self) -> httpx.Client:
        """Return a client of the operators' listener."""
        return self._client(self.gateway.settings.admin_port, _ADMIN_KEY)

    def client(self) -> httpx.Client:
        """Return a client of the tenant `north`."""
        return self._client(self.gateway.port, self.keys["north"])

    def pids(self) -> dict[str, int]:
        """Return the ids of the product's processes, by role and number."""
        found = self.gateway.processes() | {name: c.pid for name, c in self.consumers.items()}
        return found | {f"backend {n}": each.pid for n, each in self.backends.items() if each.pid}

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

    def set_fault(self, backend: PacedBackend, fault: ProxyFault) -> None:
        """Make the proxy of a backend behave as `fault` says."""
        self._portal.call(backend.proxy.set_fault, fault)

    def wait_for_backends(self) -> None:
        """Wait until all backends are ready."""
        for name, each in self.backends.items():
            wait_until(each.is_ready, what=f"backend {name} is ready", every=0.05)

    @staticmethod
    def _client(port: int, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{port}"
        return httpx.Client(base_url=url, headers=headers, timeout=120.0, verify=no_authorities())

    def _start_redis(self, stack: ExitStack, purpose: str) -> str:
        options = DURABLE if purpose == "state" else ()
        if self.setup.redis == "sentinel":
            options = (*options, "--min-replicas-to-write", "1")
            deployment = stack.enter_context(sentinel_deployment(*options, **SENTINELS))
            self.redis[purpose] = deployment
            return deployment.url
        self.redis[purpose] = valkey = stack.enter_context(Valkey(*options))
        if self.setup.redis == "single":
            return valkey.url
        proxy = DelayingProxy(str(valkey.socket), delay=lambda: self.delays[purpose])
        stack.enter_context(self._portal.wrap_async_context_manager(proxy))
        return proxy.url

    def _document(self) -> dict[str, Any]:
        """Return the configuration document.

        Each region has a main pool, and some also have an overflow pool.
        """
        regions: dict[str, dict[bool, list[dict[str, str]]]] = {}
        for backend in self.backends.values():
            pools = regions.setdefault(backend.spec.region, {})
            place = {"id": backend.spec.name, "url": f"http://127.0.0.1:{backend.proxy.port}"}
            pools.setdefault(backend.spec.overflow, []).append(place)
        written = [
            {
                "name": region,
                "pools": [
                    {"name": "spare" if extra else "main", "overflow": extra, "backends": places}
                    for extra, places in pools.items()
                ],
            }
            for region, pools in regions.items()
        ]
        return {"regions": written, "limits": {"local_share": SHARE}} | dict(self.setup.document)

    def _scrapes(self) -> Iterator[Mapping[str, Any]]:
        """Yield the targets of Prometheus, with the job names of deploy/prometheus.yaml."""
        jobs = {
            "gateway": [f"127.0.0.1:{self.gateway.settings.admin_port}"],
            "backend": [f"127.0.0.1:{each.port}" for each in self.backends.values()],
        }
        for name, targets in jobs.items():
            yield {
                "job_name": name,
                "authorization": {"credentials": _ADMIN_KEY},
                "static_configs": [{"targets": targets}],
            }

    async def _reports(self) -> list[Any]:
        redis = connect(self._control_url, timeout=5.0)
        try:
            return list(map(msgspec.json.decode, (await Control(redis).reports()).values()))
        except (RedisError, DependencyUnavailable):  # the judge itself finds that Redis is down
            return []
        finally:
            await redis.aclose()


def create_tenants(url: str, keys: Mapping[str, str]) -> None:
    """Create the ledger at `url`, and tenants with one API key each."""
    limited = {tenant: key for tenant, key in keys.items() if tenant.startswith(LIMITED)}
    add_tenants(url, limited, rules=(RULE,))
    add_tenants(url, {t: key for t, key in keys.items() if t not in limited}, rules=_FREE)


def runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False
