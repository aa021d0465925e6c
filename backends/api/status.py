"""Answers requests for state, health and metrics, and for a reload."""

import json
from collections.abc import Awaitable, Callable

import msgspec

from backends.api.asgi import Receive, Scope, Send, respond
from backends.api.calls import CallAuthenticator, send_refusal
from backends.errors import NotReady, StartProblem, Unauthorized
from backends.protocol import MEDIA_TYPE
from backends.serving.core import ServingCore
from backends.telemetry.metrics import CONTENT_TYPE, BackendMetrics

_JSON = b"application/json"
_OK, _UNAVAILABLE = 200, 503


class StatusHandlers:
    """Answers requests that only read: state, health, metrics."""

    def __init__(self, *, core: ServingCore, authenticator: CallAuthenticator) -> None:
        self._core = core
        self._authenticator = authenticator
        self._metrics = BackendMetrics(core.snapshot)

    async def state(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /v1/state`, for gateways."""
        try:
            self._authenticator.check(scope)
        except Unauthorized as error:
            await send_refusal(send, error)
            return
        body = msgspec.msgpack.encode(self._core.state())
        await respond(send, _OK, body, MEDIA_TYPE.encode())

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /health/live`: 503 when only a restart helps."""
        failures = self._core.failures()
        body = json.dumps({"live": not failures, "failures": failures}).encode()
        await respond(send, _UNAVAILABLE if failures else _OK, body, _JSON)

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /health/ready`: whether calls are answered, on what, and what is missing.

        The reasons name files, and are only shown to authenticated callers.
        """
        state = self._core.state()
        missing = state.missing
        try:
            self._authenticator.check(scope)
        except Unauthorized:
            missing = list(dict.fromkeys(line.partition(":")[0] for line in missing))
        body = json.dumps(
            {
                "ready": state.ready,
                "backend_id": state.backend_id,
                "region": state.region,
                "provider": state.provider,
                "models": [model.name for model in state.models],
                "missing": missing,
            }
        ).encode()
        await respond(send, _OK if state.ready else _UNAVAILABLE, body, _JSON)

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /metrics`, for Prometheus."""
        await respond(send, _OK, self._metrics.render(), CONTENT_TYPE.encode())


class ReloadHandler:
    """Answers `POST /v1/models/reload` once the repository was read and is served."""

    def __init__(
        self,
        *,
        reload: Callable[[], Awaitable[None]],
        core: ServingCore,
        authenticator: CallAuthenticator,
    ) -> None:
        self._reload = reload
        self._core = core
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            self._authenticator.check(scope)
            await self._reload()
        except Unauthorized as error:
            await send_refusal(send, error)
            return
        except StartProblem as error:
            await send_refusal(send, NotReady(str(error)))
            return
        body = msgspec.msgpack.encode(self._core.state())
        await respond(send, _OK, body, MEDIA_TYPE.encode())
