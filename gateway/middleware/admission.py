"""Gives each request an id, and admits callers with a key and within limits to Litestar routes."""

from collections.abc import Callable, Sequence

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import HttpMethod, ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from gateway.auth.bearer import find_bearer_token
from gateway.auth.key_ring import KeyRing
from gateway.errors import RateLimited
from gateway.http.client_id import ECHO, parse_client_id
from gateway.rate_limit.base import Charge, RateLimiter
from gateway.rate_limit.charges import charges_for
from gateway.rate_limit.headers import rate_limit_headers
from gateway.runtime.store import RuntimeStore
from gateway.types import Principal, RequestId

REQUEST_ID = "sluicegate_request_id"
PRINCIPAL = "sluicegate_principal"
CLIENT_ID = "sluicegate_client_id"
DECISION = "sluicegate_decision"


class AdmissionMiddleware(ASGIMiddleware):
    """Sets the principal and the request's id in the scope's state, or refuses."""

    scopes = (ScopeType.HTTP,)

    def __init__(
        self,
        *,
        keys: KeyRing,
        limiter: RateLimiter,
        runtimes: RuntimeStore,
        new_id: Callable[[], RequestId],
    ) -> None:
        self._keys = keys
        self._limiter = limiter
        self._runtimes = runtimes
        self._new_id = new_id

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Admit the request and pass it on; `public` routes are only given an id."""
        state = scope["state"]
        state[REQUEST_ID] = self._new_id()
        if client_id := parse_client_id(dict(scope["headers"])):
            state[CLIENT_ID] = client_id
        if not scope["route_handler"].opt.get("public"):
            state[PRINCIPAL] = principal = self._authenticate(scope)
            state[DECISION] = decision = await self._limiter.admit(self._charges(principal))
            if not decision.allowed:
                raise RateLimited("A limit on requests is used up; wait as `Retry-After` says.")
        await next_app(scope, receive, _with_headers(scope, send))

    def _authenticate(self, scope: Scope) -> Principal:
        key = find_bearer_token(scope["headers"])
        principal = self._keys.find(key)
        if principal is None:
            raise self._keys.refusal(key)
        return principal

    def _charges(self, principal: Principal) -> Sequence[Charge]:
        limits = self._runtimes.current.document.limits
        return charges_for(
            principal,
            requests=1,
            items=0,
            default_tenant_rules=limits.tenant,
            default_key_rules=limits.key,
        )


def response_headers(scope: Scope) -> dict[str, str]:
    """Return what every answer carries: the request's id, and limits where there is a caller."""
    state = scope["state"]
    decision = state.get(DECISION)
    limits = [] if decision is None else rate_limit_headers(decision)
    own = {name.decode(): value.decode() for name, value in limits}
    if CLIENT_ID in state:
        own[ECHO] = state[CLIENT_ID]
    return {"x-request-id": str(state.get(REQUEST_ID, "")), **own}


def _with_headers(scope: Scope, send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableScopeHeaders.from_message(message)
            headers.update(response_headers(scope))
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
