"""Runs a gateway and its backends as processes, with a faulty proxy before each backend."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from redis.asyncio import Redis

from backends.protocol import RELOAD_PATH, STATE_PATH
from gateway.auth.keys import hash_key
from gateway.dispatch.statistics import DispatchStatistics
from gateway.ledger.ledger import Ledger
from gateway.runtime.control import Control
from gateway.settings import Settings, process_environment
from gateway.types import Rule
from loadtests.faults.model import write_revision
from loadtests.faults.proxy import FaultyProxy
from testing.loopback import no_authorities
from testing.ports import free_port
from testing.valkey import Valkey

KEY = "sk-a-key-of-the-chaos-runs"
_ROOT = Path(__file__).parents[2]
_PLENTY = 10**9
_TIMEOUT = 60.0


class BatchPace(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of a batch in seconds: `base`, plus `token` per token."""

    base: float = 2e-3
    token: float = 5e-4


class BackendSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specifies a backend: its own repository or `models`; `settings` override the pace."""

    name: str
    region: str
    pace: BatchPace = BatchPace()
    overflow: bool = False
    models: Path | None = None
    settings: dict[str, str] = {}


class PacedBackend:
    """Runs a backend of declared speed with its repository and the proxy before it."""

    def __init__(self, spec: BackendSpec, folder: Path) -> None:
        self.spec = spec
        self.models = spec.models or folder / spec.name
        if spec.models is None:
            write_revision(self.models, 1)
        self.port = free_port()
        self.proxy = FaultyProxy(self.port, seed=len(spec.name))
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        pace = self.spec.pace
        settings = {
            "provider": "paced",
            "threads": "1",
            "tokenizer_threads": "1",
            "paced_base": str(pace.base),
            "paced_token": str(pace.token),
        } | self.spec.settings
        command = [sys.executable, "-m", "backends", "serve", "--models", str(self.models)]
        command += ["--port", str(self.port), "--region", self.spec.region, "--id", self.spec.name]
        self._child = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=_environment({f"SLUICEGATE_BACKEND_{k.upper()}": v for k, v in settings.items()}),
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """Kill the process."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._child is not None:
            self._child.send_signal(number)

    async def ready(self) -> None:
        """Wait until it answers."""
        await _until_ok(f"http://127.0.0.1:{self.port}{STATE_PATH}")

    async def change_revision(self) -> None:
        """Switch it to another revision of its model."""
        write_revision(self.models, 2)
        async with httpx.AsyncClient(timeout=_TIMEOUT, verify=no_authorities()) as client:
            answer = await client.post(f"http://127.0.0.1:{self.port}{RELOAD_PATH}")
            answer.raise_for_status()


class ChaosSystem:
    """Holds the running `backends` by name, and a gateway on `port`."""

    def __init__(self, backends: Sequence[PacedBackend], port: int, redis: Redis) -> None:
        self.backends = {backend.spec.name: backend for backend in backends}
        self.port = port
        self._control = Control(redis)

    def of_region(self, region: str) -> list[PacedBackend]:
        """Return the backends of a region."""
        return [each for each in self.backends.values() if each.spec.region == region]

    async def reports(self) -> list[dict[str, Any]]:
        """Return each worker's statistics, at most two seconds old."""
        return [msgspec.json.decode(text) for text in (await self._control.reports()).values()]

    async def dispatched(self) -> DispatchStatistics:
        """Return the counts of the worker's dispatcher."""
        (report,) = await self.reports()
        return msgspec.convert(report["dispatch"], DispatchStatistics)


@asynccontextmanager
async def chaos_system(
    folder: Path, specs: Sequence[BackendSpec], **document: Any
) -> AsyncIterator[ChaosSystem]:
    """Run backends, a proxy before each, Valkey, and a gateway of one worker over them.

    `document` holds sections of the gateway's configuration.
    """
    async with AsyncExitStack() as stack:
        valkey = stack.enter_context(Valkey())
        backends = [PacedBackend(spec, folder / "models") for spec in specs]
        for backend in backends:
            stack.callback(backend.kill)
            backend.start()
            await stack.enter_async_context(backend.proxy)
        for backend in backends:
            await backend.ready()
        settings = Settings(
            data_dir=folder / "data",
            config=folder / "config",
            cache_url=valkey.url,
            state_url=valkey.url,
            port=free_port(),
            admin_port=free_port(),
            admin_key=secrets.token_hex(16),
        )
        _configure(settings, backends, document)
        stack.enter_context(_gateway(settings))
        await _until_ok(f"http://127.0.0.1:{settings.port}/health/ready")
        redis = Redis.from_url(valkey.url)
        stack.push_async_callback(redis.aclose)
        yield ChaosSystem(backends, settings.port, redis)


def _configure(
    settings: Settings, backends: Sequence[PacedBackend], document: Mapping[str, Any]
) -> None:
    regions: dict[str, dict[bool, list[dict[str, str]]]] = {}
    for backend in backends:
        pools = regions.setdefault(backend.spec.region, {})
        place = {"id": backend.spec.name, "url": f"http://127.0.0.1:{backend.proxy.port}"}
        pools.setdefault(backend.spec.overflow, []).append(place)
    written = [
        {
            "name": region,
            "pools": [
                {"name": "spare" if overflow else "main", "overflow": overflow, "backends": places}
                for overflow, places in pools.items()
            ],
        }
        for region, pools in regions.items()
    ]
    settings.config.mkdir(parents=True)
    # JSON is YAML.
    content = msgspec.json.encode({"regions": written} | dict(document))
    (settings.config / "gateway.yaml").write_bytes(content)
    settings.data_dir.mkdir()
    rules = (Rule(name="plenty", unit="requests", capacity=_PLENTY, window=1.0),)
    with Ledger.create(settings.ledger) as ledger:
        ledger.accounts.create_tenant("chaos", rules=rules)
        ledger.accounts.create_key("chaos", key_hash=hash_key(KEY))


class _Gateway:
    """Runs the gateway's supervisor and its children."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __enter__(self) -> None:
        settings = self._settings
        named = {
            name: str(getattr(settings, name))
            for name in (
                *("data_dir", "config", "cache_url", "state_url", "port", "admin_port"),
                "admin_key",
            )
        }
        variables = {f"SLUICEGATE_{name.upper()}": value for name, value in named.items()}
        variables["SLUICEGATE_BATCHES"] = "false"
        with (settings.data_dir / "output").open("wb") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "gateway", "gateway", "--workers", "1"],
                cwd=_ROOT,
                env=_environment(variables),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __exit__(self, *exc_info: object) -> None:
        self._child.terminate()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.kill(self._child.pid, signal.SIGKILL)
            self._child.wait()


def _gateway(settings: Settings) -> _Gateway:
    return _Gateway(settings)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return dict(process_environment()) | dict(more)


async def _until_ok(url: str) -> None:
    client = httpx.AsyncClient(verify=no_authorities())
    async with asyncio.timeout(_TIMEOUT), client:
        while True:
            try:
                if (await client.get(url)).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.02)
