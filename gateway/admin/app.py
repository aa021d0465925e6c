"""Builds the Litestar application of the operators' listener."""

import asyncio
import hmac
import secrets
from functools import partial
from typing import Any

from litestar import Request, Response
from litestar.datastructures import MutableScopeHeaders
from litestar.di import Provide
from litestar.enums import HttpMethod, ScopeType
from litestar.exceptions import HTTPException
from litestar.middleware import ASGIMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Message, Receive, ReceiveMessage, Scope, Send
from typing_extensions import override

from gateway.admin.accounts import AccountChanges, KeyController, TenantController
from gateway.admin.active_document import ActiveDocumentReader
from gateway.admin.arms import ArmReader
from gateway.admin.backend_calls import BackendCalls
from gateway.admin.billing import BillingController
from gateway.admin.configuration import ConfigController
from gateway.admin.model_names import ModelNameValidator
from gateway.admin.model_plans import PlansController
from gateway.admin.models import ModelsController
from gateway.admin.openapi import operators_document
from gateway.admin.operations import CacheController, live, metrics, ready
from gateway.admin.plan_changes import PlanChanges
from gateway.admin.publishing import Publisher
from gateway.admin.regions import BackendChanges, RegionsController
from gateway.api.application import Application
from gateway.api.docs import docs_page, docs_script, openapi_document, provide_document
from gateway.api.error_handling import problem_response
from gateway.auth.bearer import find_bearer_token
from gateway.errors import AuthenticationFailed, InvalidRequest, RequestTimeout
from gateway.http.draining import Draining
from gateway.ledger.ledger import Ledger
from gateway.redis.connect import PipelinedClient
from gateway.runtime.control import Control
from gateway.runtime.recovery import Recovery
from gateway.settings import Settings
from gateway.upstream.base import BackendClient

_REQUEST_ID = "request_id"
HANDLERS = (
    *(ConfigController, TenantController, KeyController, BillingController),
    *(CacheController, ModelsController, PlansController, RegionsController),
    *(metrics, live, ready),
)
_IS_ADMIN = "is_admin"
# Seconds from the head of a request to the end of its body.
_BODY_TIMEOUT = 30.0


class AdminAccess(ASGIMiddleware):
    """Requires the admin key except for health and docs; gives every request an id.

    A body that takes longer than `body_timeout` seconds to arrive is refused.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, admin_key: str, *, body_timeout: float) -> None:
        self._key = admin_key.encode()
        self._body_timeout = body_timeout

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on, or refuse it."""
        request_id = new_id()
        scope["state"][_REQUEST_ID] = request_id

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                headers["x-request-id"] = request_id
                headers.setdefault("cache-control", "no-store")
                if scope.get("method") == HttpMethod.OPTIONS:
                    headers["allow"] = ", ".join(_methods(scope))
            await send(message)

        scope["state"][_IS_ADMIN] = is_admin = self._is_admin(scope)
        if not (scope["route_handler"].opt.get("public") or is_admin):
            raise AuthenticationFailed("send `Authorization: Bearer` with the admin key")
        await next_app(scope, _within(self._body_timeout, receive), answer)

    def _is_admin(self, scope: Scope) -> bool:
        # Without a key nobody is admin: an empty one must not let everybody in.
        return bool(self._key) and hmac.compare_digest(
            find_bearer_token(scope["headers"]), self._key
        )


def build_admin(
    *,
    settings: Settings,
    control: Control,
    cache_redis: PipelinedClient,
    ledger: Ledger,
    publisher: Publisher,
    recovery: Recovery,
    backend_client: BackendClient,
    draining: Draining | None = None,
    body_timeout: float = _BODY_TIMEOUT,
) -> Application:
    """Return the application; objects are made and owned by the caller."""
    active = ActiveDocumentReader(control=control, settings=settings)
    calls = BackendCalls(control=control, active=active, client=backend_client)
    objects: dict[str, object] = {
        "settings": settings,
        "control": control,
        "cache_redis": cache_redis,
        "ledger": ledger,
        "publisher": publisher,
        "draining": draining or Draining(),
        "active": active,
        "model_names": ModelNameValidator(control=control, active=active),
        "changes": AccountChanges(ledger=ledger, control=control),
        "backends": BackendChanges(
            control=control, active=active, ledger=ledger, recovery=recovery
        ),
        "plan_changes": PlanChanges(backends=calls, control=control, ledger=ledger),
        "arm_reader": ArmReader(backends=calls, ledger=ledger),
    }
    dependencies = {name: _provide(value) for name, value in objects.items()}
    document = partial(operators_document, HANDLERS, frozenset(dependencies))
    return Application(
        route_handlers=[*HANDLERS, openapi_document, docs_page, docs_script],
        dependencies=dependencies | {"openapi": provide_document(document)},
        middleware=[AdminAccess(settings.admin_key, body_timeout=body_timeout)],
        exception_handlers={Exception: _problem, HTTPException: _problem},
        openapi_config=None,
        logging_config=None,
    )


def _within(seconds: float, receive: Receive) -> Receive:
    """Return `receive`, bounded in time until the body has arrived.

    It raises `RequestTimeout` after `seconds`, and `InvalidRequest` where the client leaves before:
    what Litestar raises then would be logged as a fault of the gateway.
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


def _methods(scope: Scope) -> list[str]:
    """Return the methods of the route; Litestar knows those of its last handler only."""
    template = scope["path_template"]
    routes = (route for route in scope["litestar_app"].routes if isinstance(route, HTTPRoute))
    return sorted(
        {method for route in routes if route.path == template for method in route.methods}
    )


def new_id() -> str:
    """Return an id for a request of an operator."""
    return f"adm_{secrets.token_hex(12)}"


def _provide(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


def _problem(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    # A route that does not exist is refused before the middleware makes the request's id.
    request_id = str(request.scope["state"].get(_REQUEST_ID) or new_id())
    headers = {"x-request-id": request_id}
    if isinstance(error, RequestTimeout):
        headers["connection"] = "close"  # the rest of the body is no request
    return problem_response(error, request_id, headers)
