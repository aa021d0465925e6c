"""Answers the lines of batches in this process, by the application that answers customers.

It is a gateway worker without a listener. What differs: the key is that of the batch, found by its
id; a request is charged to quotas and to the limits of models only; its work is bulk work; and its
id, by which it is billed once, is given.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec
from litestar.types import ASGIApp
from typing_extensions import override

from gateway.api.http import Headers
from gateway.api.in_process import ApplicationRequest, call_application
from gateway.api.request_events import RequestEvents
from gateway.api.request_headers import RequestOptions, parse_request_options
from gateway.api.request_state import RequestIds, RequestState
from gateway.app.entry_points import WorkerOptions
from gateway.app.worker import open_worker
from gateway.auth.key_ring import KeyRing
from gateway.batches.answering import BUSY, Reply
from gateway.config.document import DeadlineConfig
from gateway.errors import EventLogUnavailable
from gateway.events.base import EventPublisher
from gateway.events.hit_run import HitRun
from gateway.http.draining import Draining
from gateway.ledger.batch_types import FAILED, RequestBatch
from gateway.runtime.runtime import Runtime
from gateway.runtime.store import RuntimeStore
from gateway.settings import Settings
from gateway.types import KeyId, Principal, RequestEvent, RequestId, Rule

_ERROR = 400
_MOST_DOUBLINGS = 16


class _LineRequest(msgspec.Struct, kw_only=True):
    """A request that is under way: its id, how long it may take, and what became of it."""

    id: str
    late: int
    left: float
    passing: frozenset[int] = frozenset()
    publish: Callable[[], None] | None = None
    """Publishes its event, which is withheld."""


_line: ContextVar[_LineRequest] = ContextVar("batch_line")
# Applies to no model: without any rule of its own a tenant would have those of the document.
_NO_RULE = Rule(name="none", unit="requests", capacity=1, window=1.0, model="/")


class ApplicationRunner:
    """Implements `LineRunner` over an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        """Return the answer to a line; see `LineRunner`."""
        line = _LineRequest(id=request_id, late=late, left=left)
        _line.set(line)
        request = ApplicationRequest("POST", batch.endpoint, body)
        reply = await call_application(self._app, request, _headers(batch))
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # the application answers requests that are cancelled
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers}
        return Reply(
            status=reply.status,
            headers=named,
            body=reply.body,
            passing=line.passing,
            publish=partial(_publish_withheld, line),
        )


def _publish_withheld(line: _LineRequest) -> bool:
    """Publish the event of an answer that is taken although items have none."""
    try:
        if line.publish is not None:
            line.publish()
    except EventLogUnavailable:
        return False
    return True


def _options_of_line(headers: Mapping[bytes, bytes], deadline: DeadlineConfig) -> RequestOptions:
    """Return the options of a line, which has more time after each time that it was late."""
    line = _line.get()
    longest = min(deadline.maximum * 2 ** min(line.late, _MOST_DOUBLINGS), max(line.left, 1.0))
    return parse_request_options(headers, msgspec.structs.replace(deadline, maximum=longest))


def _headers(batch: RequestBatch) -> Headers:
    return [
        (b"host", b"batches"),
        (b"authorization", b"Bearer " + batch.key.encode()),
        (b"content-type", b"application/json"),
        (b"sluicegate-criticality", b"sheddable"),
        # As long as the line may take.
        (b"x-request-timeout", b"1e9"),
    ]


async def open_line_runner(stack: AsyncExitStack, settings: Settings) -> ApplicationRunner:
    """Start a worker for batches, to be closed with `stack`, once backends are ready."""
    keys = PrincipalsById()
    options = WorkerOptions(keys, BatchIds(), BatchEvents, _options_of_line, is_bulk=True)
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
        self._limited: dict[KeyId, Principal] = {}
        self._limited_under: tuple[int, Runtime | None] = (-1, None)

    @override
    def find(self, key: bytes) -> Principal | None:
        runtime = None if self.runtimes is None else self.runtimes.current
        if self._limited_under != (self.generation, runtime):
            self._limited_under = (self.generation, runtime)
            self._limited.clear()
        name = KeyId(key.decode("latin-1"))
        limited = self._limited.get(name)
        if limited is None and (found := self.find_by_id(name)) is not None:
            limited = self._limited[name] = _limited(found, runtime)
        return limited


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
        line = _line.get(None)
        return super().new() if line is None else RequestId(line.id)


class BatchEvents(RequestEvents):
    """Publishes each request of a batch as an event of its own, under the id of its line.

    A line that fails at first and is answered later has two events, of which one is billed. That of
    an answer without some items is withheld: the line is asked again.
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
    def publish(self, state: RequestState) -> None:
        if state.status < _ERROR:
            _line.get().passing = state.passing
        super().publish(state)

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
        line = _line.get(None)
        if line is not None and line.passing:
            line.publish = partial(self._events.publish, _of_batch(event))
        elif event.status not in BUSY:
            self._events.publish(_of_batch(event))


def _of_batch(event: RequestEvent) -> RequestEvent:
    suffix = FAILED if event.status >= _ERROR else ""
    return msgspec.structs.replace(event, id=RequestId(event.id + suffix), batch=1)
