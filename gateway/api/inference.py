"""The inference routes: authenticate, read, admit, infer, publish the event, answer.

A raw ASGI handler (it is the hot path); everything it decides is decided by objects that any
other door may call too.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from litestar.types import HTTPScope, Receive, Send

from backends.protocol import Task
from gateway.api.answers import (
    cache_headers,
    count_usage,
    encode_answer,
    failed_usage,
    first_failure,
    row_headers,
)
from gateway.api.exchange import Exchange, RequestIds
from gateway.api.http import (
    ClientDisconnected,
    Headers,
    check_length,
    header,
    read_body,
    respond,
)
from gateway.api.late_bodies import LateBodies
from gateway.api.problem_details import MEDIA_TYPE, encode_problem, problem_headers
from gateway.api.request_headers import bearer_token, cache_directives, time_allowed
from gateway.api.schemas import TASK_BODIES, Body, InferBody
from gateway.auth.key_ring import KeyRing
from gateway.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    PayloadTooLarge,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
    UpstreamUnavailable,
)
from gateway.events.base import EventPublisher
from gateway.inference import Caller, Inference
from gateway.rate_limit.base import Charge, Decision
from gateway.rate_limit.charges import charges_for
from gateway.rate_limit.headers import rate_limit_headers
from gateway.runtime.runtime import Runtime
from gateway.runtime.store import RuntimeStore
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.tracing import Span, Tracer
from gateway.types import InferenceRequest, Source, Usage

_log = logging.getLogger(__name__)
_JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
_PRIVATE: tuple[bytes, bytes] = (b"cache-control", b"private, no-store")
_CLOSE: tuple[bytes, bytes] = (b"connection", b"close")
_ALLOW: tuple[bytes, bytes] = (b"allow", b"POST")


class Limiter(Protocol):
    """Decides whether a request is within its limits; see `gateway.rate_limit.base`."""

    def try_admit(self, charges: Sequence[Charge]) -> Decision | None:
        """Decide from what is held locally, `None` when that is not enough."""
        ...

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide, asking the shared state when needed."""
        ...


class InferenceDoor:
    """What the inference routes share. One per worker."""

    def __init__(
        self,
        *,
        runtimes: RuntimeStore,
        keys: KeyRing,
        limiter: Limiter,
        inference: Inference,
        events: EventPublisher,
        metrics: GatewayMetrics,
        tracer: Tracer,
        ids: RequestIds,
        loop_time: Callable[[], float],
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._runtimes = runtimes
        self._keys = keys
        self._limiter = limiter
        self._inference = inference
        self._events = events
        self._metrics = metrics
        self._tracer = tracer
        self._ids = ids
        self._now = loop_time
        self._wall = wall
        self._decoders = {body.task: msgspec.json.Decoder(body) for body in TASK_BODIES}
        self._late_bodies = LateBodies()
        self._infer_decoder = msgspec.json.Decoder(InferBody)

    async def handle(
        self, task: Task, model: str, scope: HTTPScope, receive: Receive, send: Send
    ) -> None:
        """Answer one request to the route of `task`; `model` is that of the path, where one is."""
        headers: Headers = list(scope["headers"])
        exchange = Exchange(self._ids.new(), task=task, started=self._now())
        incoming = header(headers, b"traceparent").decode("latin-1")
        attributes = {"http.request.method": "POST", "http.route": f"/v1/{task}"}
        with self._tracer.span(
            f"POST /v1/{task}", parent=incoming, kind="server", attributes=attributes
        ) as span:
            exchange.traceparent = span.traceparent
            try:
                status, out, body = await self._reply(
                    exchange, model, str(scope["method"]), headers, receive
                )
            except ClientDisconnected:
                return
            _describe(span, exchange)
        await respond(send, status, out, body)

    async def _reply(
        self, exchange: Exchange, model: str, method: str, headers: Headers, receive: Receive
    ) -> tuple[int, Headers, bytes]:
        """Return the whole answer, an error's included, its event published."""
        out: Headers = []
        try:
            body = await self._answer(exchange, model, method, headers, receive, out)
            self._publish(exchange)
        except GatewayError as error:
            out, body = self._failed(exchange, error)
        except ClientDisconnected:
            raise
        except asyncio.CancelledError:
            # Only the server cancels a request: its time to let them end is over.
            out, body = self._failed(
                exchange,
                UpstreamUnavailable("The gateway is stopping; try again.", retry_after=1.0),
            )
        except Exception:  # noqa: BLE001 - one request's fault must not end the worker
            _log.exception("unexpected failure", extra={"request_id": exchange.id})
            fault = InternalError("This is our fault; report it with the `request_id`.")
            out, body = self._failed(exchange, fault)
        out.append((b"x-request-id", exchange.id.encode()))
        out.append(_PRIVATE)
        if exchange.decision is not None:
            out += rate_limit_headers(exchange.decision)
        if exchange.is_body_due and header(headers, b"expect"):
            # What comes next may be the body or another request; nobody can tell.
            out.append(_CLOSE)
        if header(headers, b"x-server-timing"):
            out.append(_server_timing(exchange, self._now()))
        return exchange.status, out, body

    async def _answer(
        self,
        exchange: Exchange,
        model: str,
        method: str,
        headers: Headers,
        receive: Receive,
        out: Headers,
    ) -> bytes:
        runtime = self._runtimes.current
        if method != "POST":
            raise MethodNotAllowed("Use POST for this route.")
        exchange.principal = principal = self._keys.find(
            bearer_token(header(headers, b"authorization"))
        )
        if principal is None:
            raise AuthenticationFailed(
                "Send a valid API key as `Authorization: Bearer <key>`; this one is missing,"
                " unknown or revoked."
            )
        bounds = runtime.document.request
        check_length(headers, limit=bounds.max_body_bytes)
        exchange.is_body_due = False
        allowed = time_allowed(header(headers, b"x-request-timeout"), runtime.document.deadline)
        deadline = exchange.started + allowed
        arriving = read_body(receive, limit=bounds.max_body_bytes)
        raw = await self._late_bodies.read(arriving, deadline=deadline)
        body, request = self._decode(Task(exchange.task), model, raw)
        _check_items(request, bounds.max_items)
        exchange.usage = failed_usage(len(request.items))
        await self._admit(exchange, runtime, len(request.items), deadline)
        if principal.models is not None and request.model not in principal.models:
            raise PermissionDenied(f"This key may not use the model `{request.model}`.")
        caller = Caller(
            principal=principal,
            deadline=deadline,
            directives=cache_directives(header(headers, b"cache-control")),
            traceparent=exchange.traceparent,
        )
        answer = await self._inference.infer(request, caller, runtime)
        exchange.model = answer.model.info.name
        exchange.revision = answer.model.info.revision
        failure = first_failure(answer, continue_on_error=request.continue_on_error)
        if failure is not None:
            raise failure
        exchange.usage = count_usage(answer.outcomes)
        out.append(_JSON)
        out += cache_headers(answer, caller.directives)
        out += row_headers(answer)
        return encode_answer(body, answer, exchange.usage)

    def _decode(self, task: Task, model: str, raw: bytes) -> tuple[Body, InferenceRequest]:
        try:
            if task is Task.INFER:
                infer = self._infer_decoder.decode(raw)
                return infer, infer.request_for(model)
            body = self._decoders[task].decode(raw)
            return body, body.request()
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"The body does not fit the route: {error}.") from error
        except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError) as error:
            raise InvalidRequest(f"The body is not valid JSON: {error}.") from error

    async def _admit(
        self, exchange: Exchange, runtime: Runtime, items: int, deadline: float
    ) -> None:
        principal = exchange.principal
        if principal is None:
            return
        limits = runtime.document.limits
        charges = charges_for(
            principal,
            requests=1,
            items=items,
            default_tenant_rules=limits.tenant,
            default_key_rules=limits.key,
        )
        decision = self._limiter.try_admit(charges)
        if decision is None:
            try:
                async with asyncio.timeout_at(deadline):
                    decision = await self._limiter.admit(charges)
            except TimeoutError as error:
                raise DeadlineExceeded("The limits could not be asked in time.") from error
        exchange.decision = decision
        exchange.admitted = self._now()
        if not decision.allowed:
            raise self._refused(decision)

    def _refused(self, decision: Decision) -> RateLimited:
        rule = decision.violated
        name = rule.name if rule is not None else "unknown"
        self._metrics.rate_limited(name)
        unit = rule.unit if rule is not None else "requests"
        if decision.impossible and rule is not None:
            return RateLimited(
                f"The limit `{name}` never allows more than {rule.capacity} {unit} at once;"
                f" send fewer {unit} in one request."
            )
        return RateLimited(
            f"The limit `{name}` of {unit} is used up; wait as `Retry-After` says, or send fewer."
        )

    def _publish(self, exchange: Exchange) -> None:
        """Put the event on disk: an answer without one must not leave."""
        now = self._now()
        event = exchange.event(wall=self._wall, now=now)
        if event is not None:
            self._events.publish(event)
        self._metrics.request(exchange.task, exchange.status, now - exchange.started)
        if exchange.model:
            self._count(exchange.model, exchange.usage)

    def _count(self, model: str, usage: Usage) -> None:
        for source, count in (
            (Source.HIT, usage.hit),
            (Source.COLLAPSED, usage.collapsed),
            (Source.COMPUTED, usage.computed),
            (Source.FAILED, usage.failed),
        ):
            if count:
                self._metrics.items(model, source, count)
        if usage.rows:
            self._metrics.work(model, rows=usage.rows, tokens=usage.tokens)

    def _failed(self, exchange: Exchange, error: GatewayError) -> tuple[Headers, bytes]:
        """Return the problem that `error` is; failures are events too, and cost nothing."""
        exchange.fail(error, failed_usage(exchange.usage.items))
        try:
            self._publish(exchange)
        except GatewayError as unpublished:
            exchange.fail(unpublished, exchange.usage)
            self._metrics.request(exchange.task, exchange.status, self._now() - exchange.started)
            error = unpublished
        headers: Headers = [(b"content-type", MEDIA_TYPE), *problem_headers(error)]
        headers.append((b"cache-status", b"sluicegate; fwd=bypass"))
        if isinstance(error, MethodNotAllowed):
            headers.append(_ALLOW)
        if isinstance(error, RequestTimeout):
            headers.append(_CLOSE)  # the rest of the body is no request
        return headers, encode_problem(error, exchange.id)


def _check_items(request: InferenceRequest, maximum: int) -> None:
    if not request.items:
        raise InvalidRequest("The input is empty; send at least one item.")
    if len(request.items) > maximum:
        raise PayloadTooLarge(
            f"{len(request.items)} items are more than {maximum}; send them in several requests."
        )


def _describe(span: Span, exchange: Exchange) -> None:
    span.set("http.response.status_code", exchange.status)
    span.set("sluicegate.request_id", exchange.id)
    span.set("sluicegate.items", exchange.usage.items)
    if exchange.model:
        span.set("sluicegate.model", exchange.model)
    if exchange.code:
        span.fail(exchange.code)


def _server_timing(exchange: Exchange, now: float) -> tuple[bytes, bytes]:
    admission = (exchange.admitted - exchange.started) * 1000
    total = (now - exchange.started) * 1000
    steps = {"admission": admission, "inference": total - admission, "total": total}
    value = ", ".join(f"{name};dur={duration:.2f}" for name, duration in steps.items())
    return b"server-timing", value.encode()
