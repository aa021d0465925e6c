"""Passes the lines of batch jobs to a worker's core, without a network listener.

A line differs from a customer's request in four ways:

- Its API key is found by the key's id, which the batch job stores.
- The only limits that apply are quotas and the limits of models.
- Its items have the traffic class `bulk`.
- Its request id stays the same when the line is processed again. So the line is billed
  once.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.core import Core
from sluicegate.gateway.api.cross_origin import CrossOrigin
from sluicegate.gateway.api.error_handling import problem_reply
from sluicegate.gateway.api.http import HttpReply, bounded, header_fields
from sluicegate.gateway.api.inference_route import InferenceRoutes
from sluicegate.gateway.api.key_rights import check_budget
from sluicegate.gateway.api.request_headers import RequestOptions
from sluicegate.gateway.api.request_state import RequestState
from sluicegate.gateway.api.routes import inference_routes
from sluicegate.gateway.app.rpc import dialects_of
from sluicegate.gateway.app.worker import open_worker
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.batches.answering import BUSY, LineRunner, Reply
from sluicegate.gateway.errors import EventLogUnavailable, NotFound, PermissionDenied
from sluicegate.gateway.ledger.batch_types import FAILED, RequestBatch
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.types import Criticality, KeyId, Principal, RequestEvent, RequestId, Rule

_ERROR = 400
_MOST_DOUBLINGS = 16
_SHORTEST = 1.0
"""The seconds that a line has at least, even if its batch job is about to expire."""
# A rule that applies to no model. A tenant without any rule would get the limits of the
# configuration document.
_NO_RULE = Rule(name="none", unit="requests", capacity=1, window=1.0, model="/")


async def open_line_runner(stack: AsyncExitStack, settings: Settings) -> "CoreRunner":
    """Open a worker for batch jobs. Wait until backends are ready. `stack` closes the worker."""
    worker = await open_worker(stack, settings, is_bulk=True)
    core = await worker.start(stack)
    return CoreRunner(
        core,
        routes=inference_routes(dialects_of(settings)),
        runtimes=worker.runtimes,
        keys=worker.keys,
        publish=worker.events.publish,
    )


class CoreRunner(LineRunner):
    """Implements `LineRunner` with the core. `publish` takes usage events."""

    def __init__(
        self,
        core: Core,
        *,
        routes: InferenceRoutes,
        runtimes: RuntimeStore,
        keys: KeyRing,
        publish: Callable[[RequestEvent], None],
    ) -> None:
        self._core = core
        self._processor = core.processor
        self._routes = routes
        self._keys = keys
        self._principals = LinePrincipals(keys, runtimes)
        self._rules = CrossOrigin(runtimes=runtimes, keys=keys)
        self._publish = publish

    @override
    async def ask(
        self, batch: RequestBatch, request_id: str, body: bytes, *, late: int, left: float
    ) -> Reply:
        match = self._routes.find(batch.endpoint)
        if match is None:
            error = NotFound(f"The gateway has no inference route `{batch.endpoint}` any more.")
            return _reply(problem_reply(error, RequestId(request_id)))
        state = self._processor.new_state(match, RequestId(request_id))
        principal = state.principal = self._principals.find(KeyId(batch.key))
        try:
            if principal is not None:
                self._rules.check(principal, batch.endpoint, b"")
        except PermissionDenied as error:
            return _reply(problem_reply(error, state.id, errors=state.route.errors))
        event = LineEvent(self._publish)
        state.publish = event.publish
        self._processor.start_span(state, "")
        try:
            self._read_head(state, batch, body)
            state.options = _options(state.runtime, late=late, left=left)
            state.on_head_read()
            reply = await self._core.reply(state, body)
        except Exception as error:  # noqa: BLE001 - one line's fault must not end the other lines
            reply = self._processor.failed(state, error)
        finally:
            self._core.release(state)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # the core turns a cancellation into an answer
        passing = state.passing if state.status < _ERROR else frozenset()
        return _reply(reply, passing, event.publish_withheld)

    def _read_head(self, state: RequestState, batch: RequestBatch, body: bytes) -> None:
        """Check what the head of a request would be checked for."""
        if state.principal is None:
            raise self._keys.refusal(batch.key.encode())
        check_budget(state.principal)
        bounded(body, limit=state.runtime.document.request.max_body_bytes)
        state.fields = (b"",) * len(state.route.headers)


def _options(runtime: Runtime, *, late: int, left: float) -> RequestOptions:
    """Return a line's options. Each missed deadline doubles the time limit of the line."""
    longest = runtime.document.deadline.maximum * 2 ** min(late, _MOST_DOUBLINGS)
    allowed = min(longest, max(left, _SHORTEST))
    return RequestOptions(allowed=allowed, criticality=Criticality.SHEDDABLE)


def _reply(
    reply: HttpReply,
    passing: frozenset[int] = frozenset(),
    publish: Callable[[], bool] = lambda: True,
) -> Reply:
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1")
        for name, value in header_fields(reply.lines)
    }
    return Reply(
        status=reply.status, headers=headers, body=reply.body, passing=passing, publish=publish
    )


class LineEvent:
    """Publishes the usage event of a line under the id of the line.

    A line that first fails and later succeeds has two events. Only the later event is billed. If
    only some items have failed, the event is withheld at first, because the line will be tried
    again.
    """

    def __init__(self, publish: Callable[[RequestEvent], None]) -> None:
        self._publish = publish
        self._withheld: RequestEvent | None = None

    def publish(self, event: RequestEvent, passing: frozenset[int]) -> None:
        """Publish an event, unless its line will be tried again; see `EventPublisher`.

        `passing` has the statuses of failed items that another try may answer.
        """
        is_failed = event.status >= _ERROR
        id_ = RequestId(event.id + FAILED) if is_failed else event.id
        event = msgspec.structs.replace(event, id=id_, batch=1)
        if passing and not is_failed:
            self._withheld = event
        elif event.status not in BUSY:
            self._publish(event)

    def publish_withheld(self) -> bool:
        """Publish the withheld event, if any; return `False` if the event log refuses it.

        The caller does this when it will not try the line again.
        """
        try:
            if self._withheld is not None:
                self._publish(self._withheld)
        except EventLogUnavailable:
            return False
        return True


class LinePrincipals:
    """Finds a principal, the identity of a caller, by the id of its API key.

    A returned principal has no limits except quotas. Rate limits protect callers who wait for a
    response, and a batch job may take a day. The key's web origins were already checked when the
    batch job was created.
    """

    def __init__(self, keys: KeyRing, runtimes: RuntimeStore) -> None:
        self._keys = keys
        self._runtimes = runtimes
        self._limited: dict[KeyId, Principal] = {}
        self._limited_under: tuple[int, Runtime | None] = (-1, None)

    def find(self, key: KeyId) -> Principal | None:
        """Return the principal of `key`, or `None` if the key is not valid."""
        runtime = self._runtimes.current
        if self._limited_under != (self._keys.generation, runtime):
            self._limited_under = (self._keys.generation, runtime)
            self._limited.clear()
        limited = self._limited.get(key)
        if limited is None and (found := self._keys.find_by_id(key)) is not None:
            limited = self._limited[key] = _limited(found, runtime)
        return limited


def _limited(principal: Principal, runtime: Runtime) -> Principal:
    limits = runtime.document.limits
    return msgspec.structs.replace(
        principal,
        origins=None,
        tenant_rules=_quotas(principal.tenant_rules or limits.tenant),
        key_rules=_quotas(principal.key_rules or limits.key),
    )


def _quotas(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return (*(rule for rule in rules if rule.period), _NO_RULE)
