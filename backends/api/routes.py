"""Routes requests to the handler of calls, and answers state, health, metrics and reloads."""

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec
from prometheus_client.core import Metric

from backends.api.asgi import ClientGone, Handler, read_body, respond
from backends.api.calls import CallAuthenticator, CallHandler, send_refusal
from backends.errors import (
    BadCall,
    CallRefused,
    NotReady,
    Overloaded,
    StartProblem,
    Unauthorized,
)
from backends.serving.core import ServingCore
from backends.telemetry.metrics import CONTENT_TYPE, BackendMetrics
from backends.telemetry.nvml import GpuReader
from backends.telemetry.process import ProcessFigures
from backends.telemetry.spans import Tracing
from wire.http.messages import Headers, Receive, Scope, Send
from wire.plans import ASSIGNMENT_PATH, Assignment, PlanTrial, ServingPlans
from wire.protocol import (
    CALL_PATH,
    CHECK_PATH,
    MEDIA_TYPE,
    RELOAD_PATH,
    STATE_PATH,
    UNREADABLE,
    PlanVerdict,
)

T = TypeVar("T", ServingPlans, PlanTrial, Assignment)

_JSON = b"application/json"
_OK, _UNAVAILABLE = 200, 503
_OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/metrics"})
_MOST_PLANS_BYTES = 4 * 1024 * 1024


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
        self._metrics = BackendMetrics(
            core.snapshot, tracing.statistics, process=process, gpus=gpus
        )
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
        found = self._handlers.get(scope["path"])
        if found is None:
            await _refuse(send, 404, "not_found", "there is nothing at this path")
            return
        method, handler = found
        if scope["method"] != method:
            allow = [(b"allow", method.encode())]
            await _refuse(send, 405, "method_not_allowed", f"use {method}", allow)
            return
        try:
            if scope["path"] not in _OPEN_PATHS:
                self._authenticator.check(scope)
            await handler(scope, receive, send)
        except (CallRefused, Overloaded) as error:
            await send_refusal(send, error)
        except StartProblem as error:  # the repository cannot be read
            await send_refusal(send, NotReady(str(error)))
        except ClientGone:
            return

    async def state(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /v1/state`, for gateways."""
        await respond(send, _OK, msgspec.msgpack.encode(self._core.state()), MEDIA_TYPE.encode())

    async def reload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/models/reload`: the state, once the repository was read and is served."""
        body = await read_body(scope, receive, max_bytes=_MOST_PLANS_BYTES)
        await self._reload(_decode(body, ServingPlans) if body else None)
        await self.state(scope, receive, send)

    async def check(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/models/check`: what a plan would serve, and what it would break."""
        trial = _decode(await read_body(scope, receive, max_bytes=_MOST_PLANS_BYTES), PlanTrial)
        verdict = await self._check(trial)
        await respond(send, _OK, msgspec.msgpack.encode(verdict), MEDIA_TYPE.encode())

    async def assign(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/models/assignment`: the state; models follow once they are loaded."""
        body = await read_body(scope, receive, max_bytes=_MOST_PLANS_BYTES)
        self._assign(_decode(body, Assignment))
        await self.state(scope, receive, send)

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /health/live`: 503 when only a restart helps."""
        failures = self._core.failures()
        body = json.dumps({"live": not failures, "failures": failures}).encode()
        await respond(send, _UNAVAILABLE if failures else _OK, body, _JSON)

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        body = json.dumps(shown).encode()
        await respond(send, _OK if state.ready else _UNAVAILABLE, body, _JSON)

    async def read_metrics(self) -> Iterable[Metric]:
        """Return what `metrics` shows."""
        return list(self._metrics.collect())

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /metrics`, for Prometheus."""
        await respond(send, _OK, self._metrics.render(), CONTENT_TYPE.encode())


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE as error:
        raise BadCall(f"the body is no {kind.__name__}: {error}") from None


async def _refuse(send: Send, status: int, code: str, detail: str, headers: Headers = ()) -> None:
    body = json.dumps({"code": code, "detail": detail}).encode()
    await respond(send, status, body, _JSON, headers)
