"""Runs a whole gateway worker in this process, on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from sluicegate.gateway.app.worker import Worker, open_worker
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.http.server import open_listener, serve
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Rule
from sluicegate.gateway.upstream.resolving import Resolver
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from testing.raw_http import KEY, Connection
from testing.stub_backend import StubBackend


class RunningWorker:
    """A worker that serves on `port`; `registry` holds its metrics, `parts` what it is made of."""

    def __init__(
        self, port: int, settings: Settings, registry: CollectorRegistry, parts: Worker
    ) -> None:
        self.port = port
        self.settings = settings
        self.registry = registry
        self.parts = parts

    def connect(self) -> Connection:
        """Return a connection, to be entered."""
        return Connection(self.port)

    def metrics(self) -> str:
        """Return the exposition of its metrics."""
        return generate_latest(self.registry).decode()


@asynccontextmanager
async def running_worker(
    folder: Path,
    url: str,
    stubs: Sequence[StubBackend] = (),
    *,
    rules: tuple[Rule, ...] = (),
    state_url: str = "",
    upstream_ca: Path | None = None,
    resolver: Resolver | None = None,
    ledger_url: str = "",
    before: Callable[[], None] = lambda: None,
    timeouts: ConnectionTimeouts | None = None,
    draining: Draining | None = None,
    own: Mapping[str, Any] = MappingProxyType({}),
    **document: Any,
) -> AsyncIterator[RunningWorker]:
    """Run a worker on the Valkey at `url` that calls `stubs`; `KEY` is the key of a tenant.

    `rules` are the tenant's limits; `state_url` is that of another Valkey for the shared state;
    `timeouts` bounds its connections; `own` are further settings; `document` holds sections of the
    configuration. A ledger at `ledger_url` is the test's to fill.
    `before` is called when all is there that a worker needs.
    """
    settings = Settings(
        data_dir=folder,
        config=folder / "config",
        cache_url=url,
        state_url=state_url or url,
        secret="shared by the workers of a test",
        upstream_ca=upstream_ca,
        ledger_url=ledger_url,
        drain=2.0,
        # On a machine that is slow enough, a test's few callers are too many.
        **({"max_loop_delay": 0.0} | dict(own)),
    )
    _configure(settings, stubs, document)
    if not ledger_url:
        with Ledger.create(settings.ledger) as ledger:
            ledger.accounts.create_tenant("acme", rules=rules)
            ledger.accounts.create_key("acme", key_hash=hash_key(KEY))
    before()
    registry = CollectorRegistry()
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        parts = await open_worker(stack, settings, registry=registry, resolver=resolver)
        draining = draining or Draining()
        listeners = await parts.listen(stack, draining)
        await stack.enter_async_context(parts.rpc_listener(listeners, draining, stop))
        listener = open_listener("127.0.0.1", 0, None, setting="the port")
        serving = asyncio.create_task(
            serve(
                listeners.app,
                listener,
                drain=settings.drain,
                stop=stop,
                side=listeners.side,
                timeouts=timeouts,
                draining=draining,
                unsent=parts.unsent,
            )
        )
        listener.listen()
        try:
            yield RunningWorker(listener.getsockname()[1], settings, registry, parts)
        finally:
            stop.set()
            await serving


def classify(*texts: str, **fields: Any) -> bytes:
    """Return the body of a request about texts."""
    return msgspec.json.encode({"model": "stub", "input": texts, **fields})


def _configure(settings: Settings, stubs: Sequence[StubBackend], document: dict[str, Any]) -> None:
    backends = [(stub.backend_id, stub.region, stub.url) for stub in stubs]
    write_document(settings.config, backends, document)


def write_document(
    folder: Path, backends: Sequence[tuple[str, str, str]], document: dict[str, Any]
) -> None:
    """Make the folder of a document; `backends` are given as id, region and URL."""
    regions = [
        {"name": region, "pools": [{"backends": [{"id": backend_id, "url": url}]}]}
        for backend_id, region, url in backends
    ]
    folder.mkdir()
    # JSON is YAML.
    content = msgspec.json.encode({"regions": regions} | document)
    (folder / "gateway.yaml").write_bytes(content)
