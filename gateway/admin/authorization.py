"""Authenticates operators, checks their roles, and gives each request an id."""

import asyncio
import secrets

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import HttpMethod, ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, ReceiveMessage, Scope, Send
from typing_extensions import override

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.api.admission import route_methods
from sluicegate.gateway.auth.bearer import find_bearer_token
from sluicegate.gateway.errors import (
    AuthenticationFailed,
    DependencyUnavailable,
    InvalidRequest,
    RequestTimeout,
)
from sluicegate.gateway.operations.operators import Operator, Role, check_role, required_role
from sluicegate.wire.http.connection import HAS_CERTIFICATE

REQUEST_ID = "request_id"
OPERATOR = "operator"


class AdminAccess(ASGIMiddleware):
    """Admits a request only from an operator who has the role that the route requires.

    Routes with the option `public` need no operator. The middleware stores the operator in
    `scope["state"]["operator"]`. On a public route, this value may be `None`.

    With `wants_certificate`, the middleware also requires a client certificate. But a route's
    option `without_certificate` may set a role, and operators with this role need no certificate.
    So Prometheus can read metrics, and the supervisor can reload the configuration with the admin
    key.

    The middleware refuses a request whose body takes longer than `body_timeout` seconds to arrive.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(
        self,
        directory: OperatorDirectory,
        *,
        body_timeout: float,
        wants_certificate: bool = False,
    ) -> None:
        self._directory = directory
        self._wants_certificate = wants_certificate
        self._body_timeout = body_timeout

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on, or refuse it."""
        request_id = new_id()
        scope["state"][REQUEST_ID] = request_id

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                headers["x-request-id"] = request_id
                headers.setdefault("cache-control", "no-store")
                if scope.get("method") == HttpMethod.OPTIONS:
                    headers["allow"] = ", ".join(route_methods(scope))
            await send(message)

        is_public = bool(scope["route_handler"].opt.get("public"))
        scope["state"][OPERATOR] = await (
            self._recognize(scope) if is_public else self._authorize(scope)
        )
        await next_app(scope, _within(self._body_timeout, receive), answer)

    async def _authorize(self, scope: Scope) -> Operator:
        """Return the operator who sent the request, if the operator may use the route.

        Raises:
            AuthenticationFailed: the token is unknown, or the client certificate is missing.
            PermissionDenied: the operator lacks the role.
        """
        operator = await self._operator(scope)
        if operator is None:
            raise AuthenticationFailed(
                "send `Authorization: Bearer` with an operator's key, such as the admin key"
            )
        opt = scope["route_handler"].opt
        exempt = opt.get("without_certificate")
        is_exempt = isinstance(exempt, Role) and operator.may(exempt)
        if not (is_exempt or self._has_certificate(scope)):
            raise AuthenticationFailed("a client certificate is missing: connect with one")
        check_role(operator, required_role(str(scope.get("method", "")), opt))
        return operator

    async def _recognize(self, scope: Scope) -> Operator | None:
        """Return the operator who sent a request to a public route, or `None` if unknown."""
        if not self._has_certificate(scope):
            return None
        try:
            return await self._operator(scope)
        except (AuthenticationFailed, DependencyUnavailable):
            return None

    async def _operator(self, scope: Scope) -> Operator | None:
        token = find_bearer_token(scope["headers"])
        return await self._directory.authenticate(token.decode("utf-8", "surrogateescape"))

    def _has_certificate(self, scope: Scope) -> bool:
        return not self._wants_certificate or bool(scope["state"].get(HAS_CERTIFICATE))


def new_id() -> str:
    """Return an id for an operator's request."""
    return f"adm_{secrets.token_hex(12)}"


def _within(seconds: float, receive: Receive) -> Receive:
    """Wrap `receive` so that the body must arrive within `seconds`.

    The wrapper raises `RequestTimeout` after that time. It raises `InvalidRequest` if the client
    disconnects before the body is complete, because Litestar's own exception would be logged as an
    error of the gateway.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    is_arriving = True

    async def receive_in_time() -> ReceiveMessage:
        nonlocal is_arriving
        try:
            async with asyncio.timeout_at(deadline if is_arriving else None):
                message = await receive()
        except TimeoutError:
            raise RequestTimeout("The body did not arrive in time; send it faster.") from None
        if is_arriving and message["type"] == "http.disconnect":
            raise InvalidRequest("The connection ended before the body.")
        is_arriving = message["type"] == "http.request" and message.get("more_body", False)
        return message

    return receive_in_time
