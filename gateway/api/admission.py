"""Gives each request an id, and admits callers with a key and within limits to Litestar routes."""

from collections.abc import Callable

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import HttpMethod, ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from sluicegate.gateway.api.incoming_request import INCOMING, IncomingRequest
from sluicegate.gateway.errors import RateLimited
from sluicegate.gateway.rate_limit.base import RateLimiter
from sluicegate.gateway.rate_limit.charges import charges_for
from sluicegate.gateway.rate_limit.headers import rate_limit_lines
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import RequestId

REQUEST_ID = "sluicegate_request_id"
PRINCIPAL = "sluicegate_principal"


class AdmissionMiddleware(ASGIMiddleware):
    """Sets the principal and the request's id in the scope's state, or refuses.

    It puts the header lines of limits and of the caller's id into `IncomingRequest.added_lines`.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(
        self, *, limiter: RateLimiter, runtimes: RuntimeStore, new_id: Callable[[], RequestId]
    ) -> None:
        self._limiter = limiter
        self._runtimes = runtimes
        self._new_id = new_id

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Admit the request and pass it on; `public` routes are only given an id."""
        state = scope["state"]
        state[REQUEST_ID] = self._new_id()
        request: IncomingRequest = state[INCOMING]
        request.added_lines = request.id_line + request.added_lines
        if not scope["route_handler"].opt.get("public"):
            principal = request.principal
            if principal is None:
                raise request.refusal()
            state[PRINCIPAL] = principal
            limits = self._runtimes.current.document.limits
            charges = charges_for(
                principal, default_tenant_rules=limits.tenant, default_key_rules=limits.key
            )
            decision = await self._limiter.admit(charges)
            request.added_lines = rate_limit_lines(decision) + request.added_lines
            if not decision.allowed:
                raise RateLimited("A limit on requests is used up; wait as `Retry-After` says.")
        await next_app(scope, receive, _with_headers(scope, send))


def _with_headers(scope: Scope, send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableScopeHeaders.from_message(message)
            headers["x-request-id"] = scope["state"][REQUEST_ID]
            if PRINCIPAL in scope["state"]:
                headers.setdefault("cache-control", "private, no-store")
            is_own = scope["route_handler"].opt.get("own_methods")
            if scope.get("method") == HttpMethod.OPTIONS and not is_own:
                headers["allow"] = ", ".join(route_methods(scope))
        await send(message)

    return send_with_headers


def route_methods(scope: Scope) -> list[str]:
    """Return the methods of the route; Litestar knows those of its last handler only."""
    template = scope["path_template"]
    routes = (route for route in scope["litestar_app"].routes if isinstance(route, HTTPRoute))
    return sorted(
        {method for route in routes if route.path_format == template for method in route.methods}
    )
