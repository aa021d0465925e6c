"""Routes requests to the handler of calls, and answers state, health, metrics and reloads."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec
from prometheus_client.core import Metric

from sluicegate.backends.api.asgi import ClientGone, read_body
from sluicegate.backends.api.calls import CallAuthenticator, CallHandler, encode_refusal
from sluicegate.backends.api.direct_calls import CONTENT
from sluicegate.backends.errors import (
    BadCall,
    CallRefused,
    NotReady,
    Overloaded,
    StartProblem,
    Unauthorized,
)
from sluicegate.backends.serving.core import ServingCore
from sluicegate.backends.telemetry.metrics import CONTENT_TYPE, BackendMetrics
from sluicegate.backends.telemetry.nvml import GpuReader
from sluicegate.backends.telemetry.process import ProcessFigures
from sluicegate.backends.telemetry.spans import Tracing
from sluicegate.wire.http.exchange import BUFFERED_HTTP, Exchange
from sluicegate.wire.http.messages import Receive, Scope, Send
from sluicegate.wire.plans import ASSIGNMENT_PATH, Assignment, PlanTrial, ServingPlans
from sluicegate.wire.protocol import (
    CALL_PATH,
    CHECK_PATH,
    RELOAD_PATH,
    STATE_PATH,
    UNREADABLE,
    PlanVerdict,
    ServingState,
)

T = TypeVar("T", ServingPlans, PlanTrial, Assignment)
Handler = Callable[[Scope, Receive], Awaitable["Answer | None"]]

JSON_LINE = b"content-type: application/json\r\n"
_OK, _UNAVAILABLE = 200, 503
_OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/metrics"})
_MOST_PLANS_BYTES = 4 * 1024 * 1024


class Answer(NamedTuple):
    """Holds a whole response; `lines` are header lines, each ended by CRLF."""

    status: int
    lines: bytes
    body: bytes


class Routes:
    """Dispatches ASGI requests by path and method; turns refusals into responses."""

    def __init__(
        self,
        *,
        calls: CallHandler,
        core: ServingCore,
        authenticator: CallAuthenticator,
        reload: Callable[[ServingPlans | None], Awaitable[None]],
        check: Callable[[PlanTrial], Awaitable[PlanVerdict]],
        assign: Callable[[Assignment], None],
        tracing: Tracing,
        process: ProcessFigures | None = None,
        gpus: GpuReader | None = None,
    ) -> None:
        self.calls = calls
        self._core = core
        self._authenticator = authenticator
        self._reload = reload
        self._check = check
        self._assign = assign
        self._metrics = BackendMetrics(core.snapshot, tracing.counts, process=process, gpus=gpus)
        self._handlers: dict[str, tuple[str, Handler]] = {
            CALL_PATH: ("POST", calls),
            STATE_PATH: ("GET", self.state),
            RELOAD_PATH: ("POST", self.reload),
            CHECK_PATH: ("POST", self.check),
            ASSIGNMENT_PATH: ("POST", self.assign),
            "/health/live": ("GET", self.live),
            "/health/ready": ("GET", self.ready),
            "/metrics": ("GET", self.metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange: Exchange = scope["extensions"][BUFFERED_HTTP]
        with suppress(ClientGone):
            if (answer := await self._answer(scope, receive)) is not None:
                await exchange.send(*answer)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | None:
        found = self._handlers.get(scope["path"])
        if found is None:
            return _json(404, {"code": "not_found", "detail": "there is nothing at this path"})
        method, handler = found
        if scope["method"] != method:
            problem = {"code": "method_not_allowed", "detail": f"use {method}"}
            return _json(405, problem, b"allow: %b\r\n" % method.encode())
        try:
            if scope["path"] not in _OPEN_PATHS:
                self._authenticator.check(scope)
            return await handler(scope, receive)
        except (CallRefused, Overloaded) as error:
            return Answer(error.status, CONTENT, encode_refusal(error))
        except StartProblem as error:  # the repository cannot be read
            refused = NotReady(str(error))
            return Answer(refused.status, CONTENT, encode_refusal(refused))

    async def state(self, scope: Scope, receive: Receive) -> Answer:
        """`GET /v1/state`, for gateways."""
        return _message(self._core.state())

    async def reload(self, scope: Scope, receive: Receive) -> Answer:
        """`POST /v1/models/reload`: the state, once the repository was read and is served."""
        body = await read_body(scope, receive, max_bytes=_MOST_PLANS_BYTES)
        await self._reload(_decode(body, ServingPlans) if body else None)
        return _message(self._core.state())

    async def check(self, scope: Scope, receive: Receive) -> Answer:
        """`POST /v1/models/check`: what a plan would serve, and what it would break."""
        trial = _decode(await read_body(scope, receive, max_bytes=_MOST_PLANS_BYTES), PlanTrial)
        return _message(await self._check(trial))

    async def assign(self, scope: Scope, receive: Receive) -> Answer:
        """`POST /v1/models/assignment`: the state; models follow once they are loaded."""
        body = await read_body(scope, receive, max_bytes=_MOST_PLANS_BYTES)
        self._assign(_decode(body, Assignment))
        return _message(self._core.state())

    async def live(self, scope: Scope, receive: Receive) -> Answer:
        """`GET /health/live`: 503 when only a restart helps."""
        failures = self._core.failures()
        shown = {"live": not failures, "failures": failures}
        return _json(_UNAVAILABLE if failures else _OK, shown)

    async def ready(self, scope: Scope, receive: Receive) -> Answer:
        """`GET /health/ready`: whether the backend answers calls.

        Authenticated callers also get its name, its hardware, and what is missing.
        """
        state = self._core.state()
        shown: dict[str, object] = {"ready": state.ready}
        try:
            self._authenticator.check(scope)
        except Unauthorized:
            pass  # a probe without a token needs no more
        else:
            shown |= {
                "backend_id": state.backend_id,
                "region": state.region,
                "provider": state.provider,
                "models": [model.name for model in state.models],
                "missing": state.missing,
            }
        return _json(_OK if state.ready else _UNAVAILABLE, shown)

    async def read_metrics(self) -> Iterable[Metric]:
        """Return what `metrics` shows."""
        return list(self._metrics.collect())

    async def metrics(self, scope: Scope, receive: Receive) -> Answer:
        """`GET /metrics`, for Prometheus."""
        lines = b"content-type: %b\r\n" % CONTENT_TYPE.encode()
        return Answer(_OK, lines, self._metrics.render())


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE as error:
        raise BadCall(f"the body is no {kind.__name__}: {error}") from None


def _message(content: ServingState | PlanVerdict) -> Answer:
    return Answer(_OK, CONTENT, msgspec.msgpack.encode(content))


def _json(status: int, shown: Mapping[str, object], lines: bytes = b"") -> Answer:
    return Answer(status, JSON_LINE + lines, json.dumps(shown).encode())
