"""Runs a backend of real parts in this process and calls it over ASGI as a gateway does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.backends.api.routes import Routes
from sluicegate.backends.app import make_routes, open_backend
from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.opening import executor_opener
from sluicegate.backends.qualification.qualify import qualify, qualify_unmeasured
from sluicegate.backends.serving.reloading import Repository
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING, Tracing
from sluicegate.wire.http.exchange import BUFFERED_HTTP
from sluicegate.wire.http.messages import Headers, Message
from sluicegate.wire.protocol import (
    CALL_PATH,
    PARAMETERS,
    RELOAD_PATH,
    Call,
    CallItem,
    Done,
    Failed,
    Frame,
    FrameReader,
    ModelInfo,
    Parameters,
    Report,
    Task,
)


class AsgiExchange:
    """A request to an ASGI application whose client disconnects on demand."""

    def __init__(
        self,
        application: Routes,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[Message] = []
        self.is_disconnected = False
        self.on_disconnect: Callable[[], object] | None = None
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "extensions": {BUFFERED_HTTP: self},
            "state": {},
        }
        self._application = application

    async def run(self) -> "AsgiExchange":
        """Answer it to its end."""
        send: Any = None  # answers go to the exchange
        await self._application(self.scope, self._inbox.get, send)
        return self

    def leave(self) -> None:
        """Close the connection, as a client does that waits no longer."""
        self._inbox.put_nowait({"type": "http.disconnect"})
        self.is_disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()

    @property
    def has_begun(self) -> bool:
        return bool(self.sent)

    async def send(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole answer; see `Exchange`."""
        self.send_now(status, lines, body)

    def send_now(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole answer; see `Exchange`."""
        self.sent += ({"status": status, "lines": lines}, {"body": body})

    def send_part(self, headers: Headers, body: bytes, *, has_more: bool) -> None:
        """Send a part of an answer; see `Exchange`."""
        if not self.sent:
            self.sent.append({"status": 200})
        self.sent.append({"body": body, "more_body": has_more})

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def frames(self) -> list[Frame]:
        return list(FrameReader().feed(self.body))


class Backend:
    """What a test does with a backend."""

    def __init__(self, routes: Routes, repository: Repository) -> None:
        self.routes = routes
        self.repository = repository
        self.engine = repository.core

    @property
    def batchers(self) -> list[Batcher]:
        return [encoder.batcher for encoder in self.engine.model_set.all_encoders()]

    def info(self, model: str) -> ModelInfo:
        """Return what the backend says of a model."""
        return next(info for info in self.engine.state().models if info.name == model)

    def call(self, model: str, task: Task, items: list[Any], **changes: Any) -> Call:
        """Make a call; `changes` are of its fields, of its items' fields, or `parameters`."""
        parameters: Parameters = changes.pop("parameters", None) or PARAMETERS[task]()
        remaining, scope = changes.pop("remaining", 600.0), changes.pop("scope", "tenant")
        traceparent = changes.pop("traceparent", "")
        known = {info.name: info for info in self.engine.state().models}
        call = Call(
            model=model,
            revision=known[model].revision if model in known else "0" * 12,
            profile=known[model].profile if model in known else "fp32",
            task=task,
            parameters=msgspec.msgpack.encode(parameters),
            items=[
                CallItem(
                    body=msgspec.msgpack.encode(item),
                    remaining=remaining,
                    scope=scope,
                    traceparent=traceparent,
                )
                for item in items
            ],
        )
        return msgspec.structs.replace(call, **changes)

    def exchange(self, call: Call, headers: Mapping[str, str] | None = None) -> AsgiExchange:
        """Return the request of a call, not yet run."""
        return AsgiExchange(self.routes, "POST", CALL_PATH, msgspec.msgpack.encode(call), headers)

    async def ask(
        self, model: str, task: Task, items: list[Any], **changes: Any
    ) -> list[Done | Failed]:
        """Call and return the outcomes in the order of the items."""
        exchange = await self.exchange(self.call(model, task, items, **changes)).run()
        assert exchange.status == 200, exchange.body
        *outcomes, report = exchange.frames
        assert isinstance(report, Report)
        found = [o for o in outcomes if isinstance(o, Done | Failed)]
        return sorted(found, key=lambda outcome: outcome.index)

    async def answer(self, model: str, task: Task, item: Any, **changes: Any) -> Any:
        """Call with one item and return its answer."""
        (outcome,) = await self.ask(model, task, [item], **changes)
        assert isinstance(outcome, Done), outcome
        return msgspec.json.decode(outcome.result)

    async def reload(self) -> AsgiExchange:
        """Have the repository read again."""
        return await AsgiExchange(self.routes, "POST", RELOAD_PATH).run()

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> AsgiExchange:
        """Read a path."""
        return await AsgiExchange(self.routes, "GET", path, headers=headers).run()


@asynccontextmanager
async def running_backend(
    models: Path,
    executor: ModelExecutor | None = None,
    *,
    tracing: Tracing | None = None,
    **settings: Any,
) -> AsyncIterator[Backend]:
    """Run a backend over `models`; `executor` stands for their graphs, else they run."""
    given = BackendSettings(models=models, region="eu", backend_id="eu-0", **settings)
    tracing = tracing or NO_TRACING
    opener = executor_opener(given) if executor is None else lambda _: executor
    # A paced executor answers when its test says so: nothing may ask it before.
    qualification = qualify if executor is None else qualify_unmeasured
    async with open_backend(
        given, tracing=tracing, open_executor=opener, qualify=qualification
    ) as repository:
        yield Backend(make_routes(repository, given, tracing), repository)
