"""Passes the lines of batch jobs directly to a worker's application, without a network listener.

A line differs from a customer's request in four ways:

- Its API key is found by the key's id, which the batch job stores.
- The only limits that apply are quotas and the limits of models.
- Its items have the traffic class `bulk`.
- Its request id stays the same when the line is processed again. So the line is billed
  once.
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
    """Describes the request of a line while the line is being processed."""

    id: str
    late: int
    """How often the line has missed its deadline before."""
    left: float
    """Seconds until the batch job expires."""
    passing: frozenset[int] = frozenset()
    """If a failed item has one of these statuses, the item can succeed when the line is tried
    again."""
    publish: Callable[[], None] | None = None
    """Publishes the line's usage event, if the event was withheld."""


_line: ContextVar[_LineRequest] = ContextVar("batch_line")
# A rule that applies to no model. A tenant without any rule would get the limits of the
# configuration document.
_NO_RULE = Rule(name="none", unit="requests", capacity=1, window=1.0, model="/")


class ApplicationRunner:
    """Implements `LineRunner` with an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        """Process a line and return the response; see `LineRunner`."""
        line = _LineRequest(id=request_id, late=late, left=left)
        _line.set(line)
        request = ApplicationRequest("POST", batch.endpoint, body)
        reply = await call_application(self._app, request, _headers(batch))
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # the application turns a cancellation into a response
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers}
        return Reply(
            status=reply.status,
            headers=named,
            body=reply.body,
            passing=line.passing,
            publish=partial(_publish_withheld, line),
        )


def _publish_withheld(line: _LineRequest) -> bool:
    """Publish the withheld usage event of a line whose failed items are not tried again."""
    try:
        if line.publish is not None:
            line.publish()
    except EventLogUnavailable:
        return False
    return True


def _options_of_line(headers: Mapping[bytes, bytes], deadline: DeadlineConfig) -> RequestOptions:
    """Return a line's options. Each missed deadline doubles the time limit of the line."""
    line = _line.get()
    longest = min(deadline.maximum * 2 ** min(line.late, _MOST_DOUBLINGS), max(line.left, 1.0))
    return parse_request_options(headers, msgspec.structs.replace(deadline, maximum=longest))


def _headers(batch: RequestBatch) -> Headers:
    return [
        (b"host", b"batches"),
        (b"authorization", b"Bearer " + batch.key.encode()),
        (b"content-type", b"application/json"),
        (b"sluicegate-criticality", b"sheddable"),
        # The value is practically no limit. `_options_of_line` applies the real limit.
        (b"x-request-timeout", b"1e9"),
    ]


async def open_line_runner(stack: AsyncExitStack, settings: Settings) -> ApplicationRunner:
    """Open a worker for batch jobs. Wait until backends are ready. `stack` closes the worker."""
    keys = PrincipalsById()
    options = WorkerOptions(keys, BatchIds(), BatchEvents, _options_of_line, is_bulk=True)
    worker = await open_worker(stack, settings, options=options)
    keys.runtimes = worker.runtimes
    return ApplicationRunner((await worker.start(stack, Draining())).app)


class PrincipalsById(KeyRing):
    """Finds a principal, the identity of a caller, by the id of its API key.

    A returned principal has no limits except quotas. Rate limits protect callers who wait for a
    response, and a batch job may take a day. The key's web origins were already checked when the
    batch job was created.
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
    """Gives each line's request the id of that line. All other requests get new ids."""

    @override
    def new(self) -> RequestId:
        line = _line.get(None)
        return super().new() if line is None else RequestId(line.id)


class BatchEvents(RequestEvents):
    """Publishes a usage event for each line of a batch job, under the id of the line.

    A line that first fails and later succeeds has two events. Only the later event is billed. If
    only some items have failed, the event is withheld at first, because the line will be tried
    again.
    """

    def __init__(
        self,
        *,
        ids: RequestIds,
        events: EventPublisher,
        **others: Any,  # Any: the base class's arguments
    ) -> None:
        super().__init__(ids=ids, events=_BatchPublisher(events), **others)

    @override
    def join(self, run: HitRun) -> bool:
        return False  # requests in a run have consecutive ids, but lines have fixed ids

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
    """Implements `EventPublisher`. Marks events as usage of batch jobs."""

    def __init__(self, events: EventPublisher) -> None:
        self._events = events
        self.reserve_bytes: Callable[[int], None] = events.reserve_bytes
        self.release_bytes: Callable[[int], None] = events.release_bytes
        self.publish_encoded: Callable[[bytes], None] = events.publish_encoded

    def publish(self, event: RequestEvent) -> None:
        """Publish an event, unless its line will be tried again; see `EventPublisher`."""
        line = _line.get(None)
        if line is not None and line.passing:
            line.publish = partial(self._events.publish, _of_batch(event))
        elif event.status not in BUSY:
            self._events.publish(_of_batch(event))


def _of_batch(event: RequestEvent) -> RequestEvent:
    suffix = FAILED if event.status >= _ERROR else ""
    return msgspec.structs.replace(event, id=RequestId(event.id + suffix), batch=1)
