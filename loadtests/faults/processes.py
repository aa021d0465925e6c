"""Runs the topology `processes`: a gateway, its backends behind proxies, and two Redis."""

import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self  # Any: sections of a document, a worker's report

import httpx
import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from redis.exceptions import RedisError

from gateway.errors import DependencyUnavailable
from gateway.redis.client import connect
from gateway.runtime.control import Control
from gateway.settings import Settings, environment, process_environment
from gateway.types import Rule
from loadtests.faults.disk import Disk
from loadtests.faults.judge import LIMITED, LedgerRow
from loadtests.faults.model import ModelOracle
from loadtests.faults.paced_backend import BackendSpec, PacedBackend
from loadtests.faults.proxy import SOUND, ProxyFault
from loadtests.faults.topology import LEDGER_QUERY, TopologyError, ledger_rows
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
_FREE = (Rule(name="plenty", unit="requests", capacity=10**9, window=1.0),)
_DURABLE = ("--appendonly", "yes")
_DOWN_AFTER = 1.5
"""Seconds without a reply after which a Sentinel takes the primary for down."""
_CONSUMERS = ("billing", "request-log")
_SUPERVISED = ("worker", "shipper", "admin", "batches")
_ADMIN_KEY = "admin-key-of-the-faults"
_PROXY_FAULTS = {
    "latency": ProxyFault(latency=2.0),
    "errors": ProxyFault(errors=0.3),
    "refused": ProxyFault(refuses=True),
    "half-open": ProxyFault(silent=True),
    "stalls": ProxyFault(stalls=0.05, stall=1.0),
    "stalls-hedged": ProxyFault(stalls=0.05, stall=1.0),
}
_LATE = 0.2
_EARLIER = 4.0


TWO_BY_TWO = tuple(
    BackendSpec(name=f"{region}-{number}", region=region)
    for region in ("eu", "us")
    for number in range(2)
)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of the topology.

    `redis` is one server for each purpose, one behind a proxy that delays, or one under Sentinels.
    `limited` tenants have the limit `RULE`.
    """

    backends: tuple[BackendSpec, ...] = TWO_BY_TWO
    workers: int = 2
    redis: Literal["single", "delayed", "sentinel"] = "single"
    limited: int = 0
    document: Mapping[str, Any] = {}
    oracle: type[ModelOracle] = ModelOracle
    batches: bool = False
    """Whether the gateway runs batch jobs."""
    disk_bytes: int = 0
    """Size of a file system for the data directory, which needs root; 0: the directory is a
    folder."""
    scrape_interval: str = ""
    """How often a Prometheus scrapes everything and evaluates the rules, such as `15s`."""


class Processes:
    """The topology `processes`. It is a `Topology`, with the backends by name for other tests."""

    name = "processes"

    def __init__(self, folder: Path, setup: Setup | None = None) -> None:
        self.setup = setup or Setup()
        self._folder = folder
        self._stack = ExitStack()
        self.keys = {tenant: f"sk-{secrets.token_hex(12)}" for tenant in self._tenants()}
        self.backends: dict[str, PacedBackend] = {}
        self.oracle = self.setup.oracle(())
        self.notes: dict[str, Any] = {}
        """What acts note for checks."""
        self.away = 0.0
        """Seconds without a primary Redis in the last failover."""
        self._consumers: dict[str, Consumer] = {}
        self._redis: dict[str, Valkey | SentinelDeployment] = {}
        self._delays = {"cache": 0.0, "state": 0.0}
        self._verbs: dict[str, Callable[[str], AbstractContextManager[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "revision": self._revision,
            "full": self._full,
            "redis-latency": self._delay,
            "failover": self._fail_over,
            "all-down": self._all_down,
            "all-down-insistent": self._all_down,
            "unequal": lambda _: nullcontext(),
            "spike": lambda _: nullcontext(),
        }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal: BlockingPortal = stack.enter_context(start_blocking_portal())
            for spec in self.setup.backends:
                models = self._folder / "models"
                backend = PacedBackend(spec, models, self.setup.oracle.write_models)
                self.backends[spec.name] = backend
                stack.callback(backend.kill)
                backend.start()
                stack.enter_context(self._portal.wrap_async_context_manager(backend.proxy))
            self.oracle = self.setup.oracle([each.models for each in self.backends.values()])
            urls = {purpose: self._start_redis(stack, purpose) for purpose in ("cache", "state")}
            disk = self.setup.disk_bytes > 0
            self.gateway = Gateway(
                self._folder / "gateway",
                self._document(),
                workers=self.setup.workers,
                cache_url=urls["cache"],
                state_url=urls["state"],
                state_timeout=STATE_TIMEOUT,
                admin=True,
                admin_key=_ADMIN_KEY,
                batches=self.setup.batches,
                # A ledger that a lost disk does not take with it.
                ledger_url=f"sqlite:///{self._folder / 'ledger.db'}" if disk else "",
            )
            if disk:
                self.disk = stack.enter_context(
                    Disk(self._folder, self.gateway.settings.data_dir, self.setup.disk_bytes)
                )
            create_tenants(self.gateway.settings.ledger, self.keys)
            self._until(self._backends_ready, what="the backends are ready")
            stack.enter_context(self.gateway)
            for role in _CONSUMERS:
                # With a disk of its own, the gateway is on another machine.
                settings = self.gateway.settings
                if disk:
                    settings = msgspec.structs.replace(settings, data_dir=self._folder / role)
                self._consumers[role] = Consumer(role, settings)
                stack.callback(self._consumers[role].stop)
                self._consumers[role].start()
            if self.setup.scrape_interval:
                self.prometheus = stack.enter_context(
                    running_prometheus(
                        self._scrapes(), interval=self.setup.scrape_interval, rules=RULES
                    )
                )
            self._control_url = urls["state"]
            self._started = self.gateway.processes()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for backend in self.backends.values():
            backend.resume()
        self._stack.close()

    def parts(self, fault: str) -> Sequence[str]:
        """Return the parts into which a fault can be injected."""
        first = self.setup.backends[0]
        backends = (f"backend {first.name}", f"region {first.region}")
        redis = ("cache", "state")
        own = (*_SUPERVISED[:3], *_CONSUMERS, "gateway")
        named: dict[str, tuple[str, ...]] = {
            "kill": (*own, *backends, *redis),
            "stop": (*backends, *redis),
            "revision": backends,
            "full": redis,
            "redis-latency": redis,
            "failover": redis,
            "all-down": ("backends",),
            "all-down-insistent": ("backends",),
            "stalls": backends[:1],
            "stalls-hedged": backends[:1],
            "unequal": ("backends",),
            "spike": ("callers",),
        }
        return named.get(fault, backends if fault in _PROXY_FAULTS else ())

    def inject(self, fault: str, part: str) -> AbstractContextManager[None]:
        """Inject a fault into a part at the entry, and undo it at the exit."""
        if fault in _PROXY_FAULTS:
            return self._proxied(part, _PROXY_FAULTS[fault])
        return self._verbs[fault](part)

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Host and port of the gateway."""
        return [("127.0.0.1", self.gateway.port)]

    def inside(self) -> AbstractContextManager[None]:
        """Do nothing: the gateway is on this machine's loopback."""
        return nullcontext()

    def unwell(self) -> Sequence[str]:
        """Return the parts that do not work now."""
        found = [f"backend {name}" for name, each in self.backends.items() if not each.is_ready()]
        found += [role for role, each in self._consumers.items() if not _runs(each.pid)]
        with suppress(FileNotFoundError):
            running = self.gateway.processes()
            found += [
                name for name in self._started if name not in running or not _runs(running[name])
            ]
        try:
            ready = get(f"http://127.0.0.1:{self.gateway.port}/health/ready", timeout=2.0).json()
            return found + [f"gateway: {each}" for each in ready["missing"] + ready["degraded"]]
        except httpx.TransportError:
            return [*found, "gateway"]

    def billed(self, since: float) -> Sequence[LedgerRow]:
        """Return the ledger's requests since a reading of `time.time`."""
        return ledger_rows(self.ask_ledger(LEDGER_QUERY.format(since=int(since * 1e9))))

    def counters(self) -> Mapping[str, float]:
        """Return counts of the dispatcher, of opened breakers, and of each backend's items."""
        found = dict.fromkeys(("computed", "failed", "retried", "hedged"), 0.0)
        found |= {"cache breaker": 0.0, "state breaker": 0.0}
        for report in self._portal.call(self._reports):
            for name in ("computed", "failed", "retried", "hedged"):
                found[name] += report["dispatch"][name]
            found["cache breaker"] += report["cache"]["remote"]["breaker_opened"]
            found["state breaker"] += report["limits"]["breaker_opened"]
        items = {f"items {name}": float(each.proxy.items) for name, each in self.backends.items()}
        return found | items

    def restore(self) -> None:
        """End all faults of proxies, and start the processes that do not run."""
        for backend in self.backends.values():
            self._portal.call(backend.proxy.set_fault, SOUND)
            backend.resume()
            backend.start()
        with suppress(AssertionError):
            wait_until(lambda: not self.unwell(), within=30.0)
            return
        for redis in self._redis.values():
            if isinstance(redis, Valkey) and not redis.is_running:
                redis.start()
        for consumer in self._consumers.values():
            consumer.stop()
            consumer.start()
        self.gateway.kill()
        self.gateway.start()
        self._started = self.gateway.processes()
        self._until(lambda: not self.unwell(), what="everything works again")

    def admin(self) -> httpx.Client:
        """Return a client of the operators' listener."""
        headers = {"authorization": f"Bearer {_ADMIN_KEY}"}
        url = f"http://127.0.0.1:{self.gateway.settings.admin_port}"
        return httpx.Client(base_url=url, headers=headers, timeout=120.0, verify=no_authorities())

    def ask_ledger(self, query: str) -> list[Sequence[Any]]:
        """Return the rows of a query."""
        path = self.gateway.settings.ledger.removeprefix("sqlite:///")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60.0)) as database:
            return database.execute(query).fetchall()

    def pids(self) -> dict[str, int]:
        """Return the id of each process of the product, by its role and number."""
        found = dict(self.gateway.processes())
        found |= {role: each.pid for role, each in self._consumers.items()}
        return found | {
            f"backend {name}": each.pid for name, each in self.backends.items() if each.pid
        }

    @contextmanager
    def _kill(self, part: str) -> Iterator[None]:
        if part in _SUPERVISED:
            role = {"worker": "gateway"}.get(part, part)
            running = self.gateway.processes()
            victim = next(pid for name, pid in running.items() if name.startswith(role))
            os.kill(victim, signal.SIGKILL)
            yield  # the supervisor starts it again
            return
        members, before = self._members(part), self.gateway.processes().values()
        for each in members:
            each.kill()
        if part == "gateway":
            self._until(lambda: not any(map(_runs, before)), what="all its processes ended")
        yield
        for each in members:
            each.start()
        self._until(self._backends_ready, what=f"{part} is ready")

    @contextmanager
    def _stop(self, part: str) -> Iterator[None]:
        members = [each for each in self._members(part) if isinstance(each, Valkey | PacedBackend)]
        for each in members:
            each.pause()
        try:
            yield
        finally:
            for each in members:
                each.resume()

    @contextmanager
    def _proxied(self, part: str, fault: ProxyFault) -> Iterator[None]:
        for backend in self._backends(part):
            self._portal.call(backend.proxy.set_fault, fault)
        yield
        for backend in self._backends(part):
            self._portal.call(backend.proxy.set_fault, SOUND)

    @contextmanager
    def _all_down(self, part: str) -> Iterator[None]:
        """Refuse the calls of all backends; the last one comes back some seconds earlier."""
        for backend in self._backends(part):
            self._portal.call(backend.proxy.set_fault, ProxyFault(refuses=True))
        yield
        *others, last = self._backends(part)
        self._portal.call(last.proxy.set_fault, SOUND)
        for backend in others:
            back = partial(self._portal.call, backend.proxy.set_fault, SOUND)
            threading.Timer(_EARLIER, back).start()

    @contextmanager
    def _revision(self, part: str) -> Iterator[None]:
        for backend in self._backends(part):
            backend.change_revision()
        self.oracle.learn()
        yield

    @contextmanager
    def _full(self, part: str) -> Iterator[None]:
        redis = self.server(part)
        redis.configure("maxmemory-policy", "noeviction")
        redis.configure("maxmemory", "1")
        try:
            yield
        finally:
            redis.configure("maxmemory", "0")

    @contextmanager
    def _delay(self, part: str) -> Iterator[None]:
        self._delays[part] = _LATE
        try:
            yield
        finally:
            self._delays[part] = 0.0

    @contextmanager
    def _fail_over(self, part: str) -> Iterator[None]:
        deployment = self._redis[part]
        if not isinstance(deployment, SentinelDeployment):
            raise TopologyError(f"`{part}` has no Sentinels")
        former = deployment.kill_primary()
        killed = time.monotonic()
        self._until(lambda: deployment.current() is not None, what="a new primary")
        self.away = time.monotonic() - killed
        yield
        deployment.rejoin(former)

    def _tenants(self) -> Iterator[str]:
        yield from ("north", "south")
        yield from (f"{LIMITED}{number}" for number in range(self.setup.limited))

    def _members(self, part: str) -> Sequence["Valkey | PacedBackend | Consumer | Gateway"]:
        """Return the processes of a part. They can be killed and started."""
        if part == "gateway":
            return [self.gateway]
        if part in _CONSUMERS:
            return [self._consumers[part]]
        return [self.server(part)] if part in self._redis else self._backends(part)

    def _backends(self, part: str) -> list[PacedBackend]:
        """Return the backends of a part: `backend eu-0`, `region eu`, or `backends`."""
        kind, _, name = part.partition(" ")
        found = list(self.backends.values())
        if kind == "backends":
            return found
        return [each for each in found if name in (each.spec.name, each.spec.region)]

    def server(self, part: str) -> Valkey:
        """Return a Redis that is a single server: `cache` or `state`."""
        redis = self._redis[part]
        if not isinstance(redis, Valkey):
            raise TopologyError(f"`{part}` is not a single server")
        return redis

    def _start_redis(self, stack: ExitStack, purpose: str) -> str:
        options = _DURABLE if purpose == "state" else ()
        if self.setup.redis == "sentinel":
            options = (*options, "--min-replicas-to-write", "1")
            deployment = stack.enter_context(
                sentinel_deployment(*options, replicas=2, sentinels=3, down_after=_DOWN_AFTER)
            )
            self._redis[purpose] = deployment
            return deployment.url
        self._redis[purpose] = valkey = stack.enter_context(Valkey(*options))
        if self.setup.redis == "single":
            return valkey.url
        proxy = DelayingProxy(str(valkey.socket), delay=lambda: self._delays[purpose])
        stack.enter_context(self._portal.wrap_async_context_manager(proxy))
        return proxy.url

    def _document(self) -> dict[str, Any]:
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

    def _scrapes(self) -> list[Mapping[str, Any]]:
        """Return the targets of Prometheus, with the names of jobs in deploy/prometheus.yaml."""
        backends = [f"127.0.0.1:{each.port}" for each in self.backends.values()]
        gateway = f"127.0.0.1:{self.gateway.settings.admin_port}"
        return [
            {
                "job_name": "gateway",
                "authorization": {"credentials": _ADMIN_KEY},
                "static_configs": [{"targets": [gateway]}],
            },
            {"job_name": "backend", "static_configs": [{"targets": backends}]},
        ]

    async def _reports(self) -> list[Any]:
        redis = connect(self._control_url, timeout=5.0)
        try:
            return list(map(msgspec.json.decode, (await Control(redis).reports()).values()))
        except (RedisError, DependencyUnavailable):  # which the judge finds by itself
            return []
        finally:
            await redis.aclose()

    def _backends_ready(self) -> bool:
        return all(backend.is_ready() for backend in self.backends.values())

    @staticmethod
    def _until(holds: Callable[[], bool], *, what: str) -> None:
        try:
            wait_until(holds, within=60.0, what=what, every=0.05)
        except AssertionError as error:
            raise TopologyError(str(error)) from error


class Consumer:
    """Runs billing, or the request log, beside the gateway."""

    def __init__(self, role: str, settings: Settings) -> None:
        self._command = [sys.executable, "-m", "gateway", f"run-{role}"]
        self._environment = dict(process_environment()) | environment(settings)

    def start(self) -> None:
        """Start the process."""
        self._child = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    def kill(self) -> None:
        """Kill the process."""
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """Let the process finish its work and end."""
        self._child.terminate()
        self._child.wait()


@contextmanager
def repeating(action: Callable[[], float]) -> Iterator[None]:
    """Call `action` from a thread; it returns how many seconds to wait until the next call.

    Raises:
        TopologyError: `action` raised an error, and was not called any more.
    """
    stop = threading.Event()
    errors: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(action()):
                pass
        except Exception as error:  # noqa: BLE001 - raised at the exit, in the other thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    for error in errors:
        raise TopologyError(f"what was repeated failed: {error!r}") from error


def create_tenants(url: str, keys: Mapping[str, str]) -> None:
    """Create the ledger at `url`, and tenants with their keys."""
    limited = {tenant: key for tenant, key in keys.items() if tenant.startswith(LIMITED)}
    add_tenants(url, limited, rules=(RULE,))
    add_tenants(url, {t: key for t, key in keys.items() if t not in limited}, rules=_FREE)


def _runs(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # a zombie has none
    except (FileNotFoundError, ProcessLookupError):
        return False
