"""Answers the lines of batches in this process, by the application that answers customers.

It is a gateway worker without a listener. What differs: the key is that of the batch, found by its
id; a request is charged to quotas and to the limits of models only; its work is bulk work; and its
id, by which it is billed once, is given.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

import msgspec
from litestar.types import ASGIApp, Message
from typing_extensions import override

from gateway.api.request_events import RequestEvents
from gateway.api.request_state import RequestIds, RequestState
from gateway.app.entry_points import WorkerOptions
from gateway.app.worker import open_worker
from gateway.auth.key_ring import KeyRing
from gateway.batches.answering import BUSY, Reply
from gateway.events.base import EventPublisher
from gateway.events.hit_run import HitRun
from gateway.http.draining import Draining
from gateway.ledger.batch_types import RequestBatch
from gateway.runtime.runtime import Runtime
from gateway.runtime.store import RuntimeStore
from gateway.settings import Settings
from gateway.types import Principal, RequestEvent, RequestId, Rule

_ERROR = 400
_request_id: ContextVar[str] = ContextVar("batch_request_id", default="")
# Applies to no model: without any rule of its own a tenant would have those of the document.
_NO_RULE = Rule(name="none", unit="requests", capacity=1, window=1.0, model="/")


class ApplicationRunner:
    """Implements `LineRunner` over an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def ask(self, batch: RequestBatch, request_id: str, body: bytes) -> Reply:
        """Return the answer to a line; see `LineRunner`."""
        _request_id.set(request_id)
        status, headers, chunks = 500, list[tuple[bytes, bytes]](), list[bytes]()
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            # Nobody disconnects.
            return waiting.pop() if waiting else await asyncio.Future()

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            elif message["type"] == "http.response.body":
                chunks.append(message["body"])

        await self._app(_scope(batch, body), receive, send)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # the application answers requests that are cancelled
        named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        return Reply(status=status, headers=named, body=b"".join(chunks))


def _scope(batch: RequestBatch, body: bytes) -> Any:
    headers = [
        (b"host", b"batches"),
        (b"authorization", b"Bearer " + batch.key.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"sluicegate-criticality", b"sheddable"),
        # As long as the document allows.
        (b"x-request-timeout", b"1e9"),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": batch.endpoint,
        "raw_path": batch.endpoint.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        "state": {},
        "extensions": {},
    }


async def open_line_runner(stack: AsyncExitStack, settings: Settings) -> ApplicationRunner:
    """Start a worker for batches, to be closed with `stack`, once backends are ready."""
    keys = PrincipalsById()
    options = WorkerOptions(keys, BatchIds(), BatchEvents, is_bulk=True)
    worker = await open_worker(stack, settings, options=options)
    keys.runtimes = worker.runtimes
    return ApplicationRunner((await worker.start(stack, Draining())).app)


class PrincipalsById(KeyRing):
    """Finds principals by the ids of their keys, with quotas for their only limits.

    A batch has a day: limits on the rate of requests are for callers who wait. Lines have no
    origin: that of the request that made the batch was checked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runtimes: RuntimeStore | None = None
        self._limited: dict[str, Principal] = {}
        self._limited_under: tuple[int, Runtime | None] = (-1, None)

    @override
    def find(self, key: bytes) -> Principal | None:
        runtime = None if self.runtimes is None else self.runtimes.current
        if self._limited_under != (self.generation, runtime):
            self._limited_under = (self.generation, runtime)
            self._limited = {one.key: _limited(one, runtime) for one in self._principals.values()}
        return self._limited.get(key.decode("latin-1"))


def _limited(principal: Principal, runtime: Runtime | None) -> Principal:
    limits = None if runtime is None else runtime.document.limits
    return msgspec.structs.replace(
        principal,
        origins=None,
        tenant_rules=_quotas(principal.tenant_rules or (limits.tenant if limits else ())),
        key_rules=_quotas(principal.key_rules or (limits.key if limits else ())),
    )


def _quotas(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return (*(rule for rule in rules if rule.period), _NO_RULE)


class BatchIds(RequestIds):
    """Gives the request under way the id of its line."""

    @override
    def new(self) -> RequestId:
        return RequestId(_request_id.get()) or super().new()


class BatchEvents(RequestEvents):
    """Publishes each request of a batch as an event of its own, under the id of its line.

    A line that fails at first and is answered later has two events, of which one is billed.
    """

    def __init__(
        self,
        *,
        ids: RequestIds,
        events: EventPublisher,
        **others: Any,  # those of its base
    ) -> None:
        super().__init__(ids=ids, events=_BatchPublisher(events), **others)

    @override
    def join(self, run: HitRun) -> bool:
        return False  # the ids of a run are not those of lines

    @override
    def event_of(self, state: RequestState) -> RequestEvent | None:
        event = super().event_of(state)
        return None if event is None else _of_batch(event)


class _BatchPublisher:
    """Implements `EventPublisher`: marks events as those of batches."""

    def __init__(self, events: EventPublisher) -> None:
        self._events = events
        self.reserve_bytes: Callable[[int], None] = events.reserve_bytes
        self.release_bytes: Callable[[int], None] = events.release_bytes
        self.publish_encoded: Callable[[bytes], None] = events.publish_encoded

    def publish(self, event: RequestEvent) -> None:
        """Record an event; see `EventPublisher`. A request that is made again has none yet."""
        if event.status not in BUSY:
            self._events.publish(_of_batch(event))


def _of_batch(event: RequestEvent) -> RequestEvent:
    suffix = "f" if event.status >= _ERROR else ""
    return msgspec.structs.replace(event, id=RequestId(event.id + suffix), batch=1)
