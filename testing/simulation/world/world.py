"""Composes the whole product in one process: machines, their processes, and a supervisor.

Addresses: gateways are at 10.0.1.1 (eu) and 10.0.2.1 (us), backends at 10.0.3.1 and 10.0.4.1, the
Redis servers at 10.0.5.1 and 10.0.6.1, and callers at 10.0.8.1.
"""

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from sluicegate.backends.api.server import BackendServer, bind
from sluicegate.backends.app import make_routes, open_backend, run_until_stopped
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.qualification.qualify import qualify_unmeasured
from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.nvml import NoGpuReader
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.gateway.admin.serve import serve_admin
from sluicegate.gateway.app.worker import serve_worker
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.http.draining import Stop
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Rule
from sluicegate.gateway.workers.billing import run_billing
from sluicegate.gateway.workers.request_log import run_request_log
from sluicegate.gateway.workers.shipper import run_shipper
from testing.simulation import Simulation
from testing.simulation.machines import Machine, Process
from testing.simulation.redis_server.data import RedisData
from testing.simulation.redis_server.server import RedisServer
from testing.simulation.world.model import GUARDS, SHARED, ArithmeticExecutor, Pace, write_models
from testing.simulation.world.scenario import CAPACITY, LIMITED, MIDNIGHT, TENANTS, WINDOW

REGIONS: Final = ("eu", "us")
ADMIN_KEY: Final = "the-admin-key-of-the-simulation"
_RESTART: Final = 0.5
"""Seconds until a process that ended is started again, as the supervisor's first delay."""
_WATCH: Final = 0.1
_LOOK: Final = 0.5
_LIVENESS: Final = 2.0
"""Seconds between two looks whether a backend is live, and until it is restarted if it is not."""
_OFFSET: Final = 35_200.0 - MIDNIGHT
_SAVED_EVERY: Final = 1.0
SHUTDOWN_DELAY: Final = 3.0
STATE_PORT: Final = 6380
CACHE_PORT: Final = 6379
_BACKEND_PORT: Final = 8100
ADMIN_PORT: Final = 8081
Main = Callable[[], Awaitable[None]]
DOCUMENT: Final[Mapping[str, Any]] = {
    "deadline": {"default": 5.0, "maximum": 20.0},
    "guards": GUARDS,
    "models": {SHARED: {"scope": "shared"}},
    "cache": {"memory_bytes": 32 * 1024},
    "limits": {"share_lease": 5.0},  # the shortest one
    "prices": [
        {"model": "*", "since": "2026-01-01", "hit": 1_000, "computed": 10_000},
        {"model": "tiny", "since": "2026-09-22", "hit": 3_000, "computed": 70_000},
    ],
}


class Part:
    """A process that the world starts again when it ends."""

    def __init__(self, machine: Machine, name: str, main: Main) -> None:
        self.machine = machine
        self.name = name
        self.main = main
        self.process: Process | None = None
        self.starts = 0
        self.start_at = 0.0
        """The earliest time of the next start."""

    @property
    def is_running(self) -> bool:
        """Whether the process runs. A paused process runs."""
        return self.process is not None and bool(self.process.is_alive)

    def start(self) -> None:
        """Start the process."""
        self.starts += 1
        self.process = self.machine.start(self.name, self.main)


class World:
    """All machines and processes. `ledger` is a prepared SQLite file, `models` a repository."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        folder: Path,
        ledger: Path,
        models: Path,
    ) -> None:
        self.simulation = simulation
        self.ledger = folder / "ledger.db"
        shutil.copy(ledger, self.ledger)
        self.machines: dict[str, Machine] = {}
        self.redis: dict[str, RedisData] = {}
        """The data of each Redis, by machine and name; it outlives the server."""
        self.saved: dict[str, RedisData] = {}
        """Data of each Redis that is at most a second old."""
        self._save_at = 0.0
        self.parts: dict[str, Part] = {}
        self.paces: dict[str, Pace] = {}
        self.failures: list[str] = []
        """Each end of a process that nobody asked for, in words."""
        self.repositories: list[Path] = []
        self.workers: dict[str, tuple[str, int]] = {}
        self.draining: list[str] = []
        """Workers to which a load balancer sends nothing."""
        self._models = models
        for number, region in enumerate(REGIONS):
            self._add_redis(region, 5 + number)
            self._add_backends(region, 3 + number, 2 if region == "eu" else 1)
            self._add_gateway(region, 1 + number, 2 if region == "eu" else 1)
        self.callers = self.machine("callers", 8)

    def machine(self, name: str, number: int) -> Machine:
        """Add a machine."""
        self.machines[name] = self.simulation.machine(name, address=f"10.0.{number}.1")
        return self.machines[name]

    def address(self, machine: str) -> str:
        """Return the address of a machine."""
        return str(self.machines[machine].address)

    def admin(self, region: str) -> tuple[str, int]:
        """Return the address of a region's operators' listener."""
        return self.address(f"{region}-gateway"), ADMIN_PORT

    def start(self) -> None:
        """Start every process. All files that are there now survive a power cut.

        The price of a model changes during the load.
        """
        for machine in self.machines.values():
            machine.clock.offset = _OFFSET
            machine.disk.settle()
        for part in self.parts.values():
            part.start()

    async def supervise(self) -> None:
        """Start processes again when they end, until cancelled. Save the data of Redis."""
        while True:
            await asyncio.sleep(_WATCH)
            if self.simulation.now >= self._save_at:
                self._save_at = self.simulation.now + _SAVED_EVERY
                self.saved = {name: data.snapshot() for name, data in self.redis.items()}
            for part in self.parts.values():
                if part.is_running or not part.machine.is_up:
                    continue
                if part.process is not None:
                    if part.process.failure is not None:
                        self.failures.append(f"{part.process.label}: {part.process.failure!r}")
                    part.process = None
                    part.start_at = max(part.start_at, self.simulation.now + _RESTART)
                elif self.simulation.now >= part.start_at:
                    part.start()

    def request_logs(self) -> dict[str, bytes]:
        """Return the content of each region's request log."""
        files = {
            region: self.machines[f"{region}-gateway"].folder / "data" / "requests.log"
            for region in REGIONS
        }
        return {name: file.read_bytes() if file.exists() else b"" for name, file in files.items()}

    def worker_of(self, part: str) -> str:
        """Return the name of the worker that is a part; empty if it is none."""
        machine, name = part.split("/")
        worker = f"{machine.split('-')[0]}-{name.removeprefix('worker-')}"
        return worker if worker in self.workers else ""

    def _add(self, machine: Machine, name: str, main: Main) -> None:
        self.parts[f"{machine.name}/{name}"] = Part(machine, name, main)

    def _add_redis(self, region: str, number: int) -> None:
        machine = self.machine(f"{region}-redis", number)
        for name, port in (("state", STATE_PORT), ("cache", CACHE_PORT)):
            self.redis[f"{machine.name}/{name}"] = RedisData(clock=machine.clock.time)
            self._add(machine, name, partial(self._redis, machine, name, port))

    def _add_backends(self, region: str, number: int, count: int) -> None:
        machine = self.machine(f"{region}-backend", number)
        models = machine.folder / "models"
        shutil.copytree(self._models, models)
        self.repositories.append(models)
        self.paces[machine.name] = Pace()
        for index in range(count):
            self._add(machine, f"backend-{index}", partial(self._backend, machine, region, index))

    def _add_gateway(self, region: str, number: int, workers: int) -> None:
        machine = self.machine(f"{region}-gateway", number)
        (machine.folder / "data").mkdir()
        config = machine.folder / "config"
        config.mkdir()
        self.write_document(config)
        settings = self._settings(machine, region)
        for index in range(workers):
            port = 8000 + index
            self.workers[f"{region}-{index}"] = machine.address, port
            own = msgspec.structs.replace(settings, worker=str(index), port=port)
            self._add(machine, f"worker-{index}", partial(self._worker, own))
        self._add(machine, "admin", partial(self._admin, settings))
        for name, run in (
            ("shipper", run_shipper),
            ("billing", run_billing),
            ("request-log", run_request_log),
        ):
            self._add(machine, name, partial(_until_stopped, run, settings))

    def write_document(self, folder: Path, **changes: Any) -> None:
        """Write the configuration document of a gateway."""
        regions = [
            {"name": region, "pools": [{"backends": list(self._backends_of(region))}]}
            for region in REGIONS
        ]
        document = {"regions": regions, **DOCUMENT, **changes}
        draft = folder / ".draft"
        draft.write_bytes(msgspec.json.encode(document))  # JSON is YAML
        draft.rename(folder / "gateway.yaml")

    def _backends_of(self, region: str) -> Iterator[dict[str, str]]:
        number = 3 + REGIONS.index(region)
        for index in range(2 if region == "eu" else 1):
            url = f"http://10.0.{number}.1:{_BACKEND_PORT + index}"
            yield {"id": f"{region}-{index}", "url": url}

    def _settings(self, machine: Machine, region: str) -> Settings:
        state = [f"redis://{self.address(f'{region}-redis')}:{STATE_PORT}/0"]
        return Settings(
            data_dir=machine.folder / "data",
            config=machine.folder / "config",
            region=region,
            state_url=state[0],
            cache_url=f"redis://{self.address(f'{region}-redis')}:{CACHE_PORT}/0",
            host=machine.address,
            admin_host=machine.address,
            admin_port=ADMIN_PORT,
            ledger_url=f"sqlite:///{self.ledger}",
            secret="the secret of the simulation",
            admin_key=ADMIN_KEY,
            # A busy simulation takes no virtual time.
            max_loop_delay=0.0,
            shutdown_delay=SHUTDOWN_DELAY,
            memory_limit_bytes=0,
        )

    async def _worker(self, settings: Settings) -> None:
        await serve_worker(settings, stop=_stop_signal(), registry=CollectorRegistry())

    async def _admin(self, settings: Settings) -> None:
        await serve_admin(settings, stop=_stop_signal(), registry=CollectorRegistry())

    async def _backend(self, machine: Machine, region: str, index: int) -> None:
        settings = BackendSettings(
            models=machine.folder / "models",
            region=region,
            backend_id=f"{region}-{index}",
            host=machine.address,
            port=_BACKEND_PORT + index,
            shutdown_delay=SHUTDOWN_DELAY,
            # So small that queues and caches are sometimes full.
            max_queue_rows=16,
            max_queue_tokens=256,
            row_cache_bytes=16 * 1024,
            tokenizer_threads=1,
            threads=2,
        )

        def open_executor(source: GraphSource) -> ModelExecutor:
            return ArithmeticExecutor(source, self.paces[machine.name])

        with bind(settings.host, settings.port) as listener:
            async with open_backend(
                settings,
                tracing=NO_TRACING,
                open_executor=open_executor,
                qualify=qualify_unmeasured,
            ) as repository:
                routes = make_routes(repository, settings, NO_TRACING, gpus=NoGpuReader())
                server, core = BackendServer(routes), repository.core
                running = asyncio.create_task(
                    run_until_stopped(server, listener, core, settings, parent=0)
                )
                dead = asyncio.create_task(_until_dead(core))
                await asyncio.wait([running, dead], return_when=asyncio.FIRST_COMPLETED)
                dead.cancel()
                if running.done():
                    await running
                else:
                    running.cancel()
                    await asyncio.wait([running])

    async def _redis(self, machine: Machine, name: str, port: int) -> None:
        server = RedisServer(self.redis[f"{machine.name}/{name}"])
        listener = machine.listener(machine.address, port)
        await server.serve(listener)  # type: ignore[arg-type]  # a simulated socket


async def _until_dead(core: ServingCore) -> None:
    """Return when an orchestrator would restart a backend, because it is not live."""
    while not core.failures():  # noqa: ASYNC110 - a backend tells nobody, it is asked
        await asyncio.sleep(_LOOK)
    await asyncio.sleep(_LIVENESS)


async def _until_stopped(run: Callable[..., Awaitable[None]], settings: Settings) -> None:
    await run(settings, stop=_stop_signal())


def _stop_signal() -> Stop:
    """Return an event that SIGTERM sets."""
    stop = Stop()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


def prepare(folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """Write what all runs begin with; return the ledger, the models, and each tenant's key."""
    ledger, models = folder / "ledger.db", folder / "models"
    write_models(models)
    secrets = {tenant: f"sk-{tenant}-0123456789abcdef" for tenant in TENANTS}
    rule = Rule(name="burst", unit="requests", capacity=CAPACITY, window=WINDOW)
    with Ledger.create(f"sqlite:///{ledger}") as opened:
        for tenant, secret in secrets.items():
            rules = (rule,) if tenant == LIMITED else ()
            opened.accounts.create_tenant(tenant, rules=rules)
            opened.accounts.create_key(tenant, key_hash=hash_key(secret))
    return ledger, models, secrets
