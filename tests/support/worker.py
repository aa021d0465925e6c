"""A whole worker in this process, on a real socket, and a connection that speaks raw HTTP to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from gateway.app.worker import build_worker
from gateway.auth.keys import hash_key
from gateway.http.connection_timeouts import ConnectionTimeouts
from gateway.http.draining import Draining
from gateway.http.server import open_listener, serve
from gateway.ledger.ledger import Ledger
from gateway.settings import Settings
from gateway.types import Rule
from gateway.upstream.resolving import Resolver
from tests.support.stub_backend import StubBackend
from tests.support.waiting import PATIENCE

KEY = "sk-a-key-of-the-worker-under-test"
_END = b"\r\n\r\n"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What came back; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body decoded."""
        return msgspec.json.decode(self.body)


class Connection:
    """One connection; what is sent on it is exactly what a test writes."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.reset()

    def close_half(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        self._writer.write_eof()

    async def send_while_read(self, part: bytes, times: int) -> bool:
        """Send the part so many times; tell whether the worker let all of it pass."""
        with contextlib.suppress(ConnectionError):
            for _ in range(times):
                if self._reader.at_eof():
                    return False
                self._writer.write(part)
                await self._writer.drain()
            return not self._reader.at_eof()
        return False

    def reset(self) -> None:
        """Leave without a word."""
        self._writer.transport.abort()

    async def send(self, *parts: bytes) -> None:
        """Send the parts, each of which the worker may read before the next is there."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return the status and headers that come next."""
        async with asyncio.timeout(PATIENCE):
            text = (await self._reader.readuntil(_END)).decode("latin-1")
        first, *lines = text.strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}

    async def response(self, *, to_head: bool = False) -> Response:
        """Return the response that comes next, which must give its length."""
        status, headers = await self.head()
        length = 0 if to_head else int(headers["content-length"])
        async with asyncio.timeout(PATIENCE):
            body = await self._reader.readexactly(length)
        return Response(status=status, headers=headers, body=body)

    async def is_closed(self) -> bool:
        """Tell whether nothing more comes because the worker closed the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._reader.read(1) == b""
            except ConnectionResetError:  # it closed while more was sent
                return True


class RunningWorker:
    """A worker that serves on `port`; `registry` holds its metrics."""

    def __init__(self, port: int, settings: Settings, registry: CollectorRegistry) -> None:
        self.port = port
        self.settings = settings
        self.registry = registry

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
    fast_lane: bool = True,
    draining: Draining | None = None,
    **document: Any,
) -> AsyncIterator[RunningWorker]:
    """Run a worker on the Valkey at `url` that calls `stubs`; `KEY` is the key of a tenant.

    `rules` are the tenant's limits; `state_url` is that of another Valkey for the shared state;
    `timeouts` bounds its connections; `document` holds sections of the configuration.
    A ledger at `ledger_url` is the test's to fill.
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
        fast_lane=fast_lane,
    )
    _configure(settings, stubs, document)
    if not ledger_url:
        with Ledger(settings.ledger) as ledger:
            ledger.accounts.create_tenant("acme", rules=rules)
            ledger.accounts.create_key("acme", key_hash=hash_key(KEY))
    before()
    registry = CollectorRegistry()
    stop = asyncio.Event()
    building = build_worker(settings, registry=registry, resolver=resolver, draining=draining)
    async with building as (app, protocol):
        listener = open_listener("127.0.0.1", 0, None, setting="the port")
        serving = asyncio.create_task(
            serve(
                app,
                listener,
                drain=settings.drain,
                stop=stop,
                protocol=protocol,
                timeouts=timeouts,
                draining=draining,
            )
        )
        listener.listen()
        try:
            yield RunningWorker(listener.getsockname()[1], settings, registry)
        finally:
            stop.set()
            await serving


def post(
    path: str,
    body: bytes | None,
    *,
    key: str = KEY,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a request; without a `body` the headers must say how it is to come."""
    lines = [f"{method} {path} HTTP/1.1", "host: worker", f"authorization: Bearer {key}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + _END + (body or b"")


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
