"""Builds the Litestar application of the operators' listener."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from litestar import Request, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from sluicegate.gateway.admin.authorization import OPERATOR, REQUEST_ID, AdminAccess, new_id
from sluicegate.gateway.admin.degradation import DegradationReader
from sluicegate.gateway.admin.health import live, metrics, ready
from sluicegate.gateway.admin.openapi import operators_document
from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.admin.routes import route_of
from sluicegate.gateway.api.application import Application
from sluicegate.gateway.api.docs import docs_page, docs_script, openapi_document, provide_document
from sluicegate.gateway.api.error_handling import problem_response
from sluicegate.gateway.api.json_body import JsonRequest
from sluicegate.gateway.errors import RequestTimeout
from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.backend_calls import BackendCalls
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.families import FAMILIES
from sluicegate.gateway.operations.model_names import ModelNameValidator
from sluicegate.gateway.operations.operator_keys import OperatorKeys
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.recovery import Recovery
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.upstream.base import BackendClient

HANDLERS: tuple[HTTPRouteHandler, ...] = (
    *(route_of(operation) for family in FAMILIES for operation in family.operations),
    *(metrics, live, ready),
)
# Maximum seconds from the head of a request to the end of its body.
_BODY_TIMEOUT = 30.0


def build_admin(
    *,
    settings: Settings,
    control: Control,
    cache_redis: PipelinedClient,
    ledger: Ledger,
    publisher: Publisher,
    recovery: Recovery,
    backend_client: BackendClient,
    operator_keys: OperatorKeys,
    directory: OperatorDirectory,
    draining: Draining | None = None,
    body_timeout: float = _BODY_TIMEOUT,
    extensions: Sequence[Router] = (),
) -> Application:
    """Return the application. The caller creates and closes the objects that it passes.

    Handlers in `extensions` can use the same dependencies as the listener's own handlers.
    """
    active = ActiveDocumentReader(control=control, settings=settings)
    calls = BackendCalls(control=control, active=active, client=backend_client)

    def context(request: Request[Any, Any, Any]) -> OperationContext:
        return OperationContext(
            operator=request.scope["state"][OPERATOR],
            request_id=request.scope["state"][REQUEST_ID],
            settings=settings,
            control=control,
            ledger=ledger,
            cache_redis=cache_redis,
            publisher=publisher,
            recovery=recovery,
            operator_keys=operator_keys,
            active=active,
            backends=calls,
            model_names=ModelNameValidator(control=control, active=active),
        )

    objects: dict[str, object] = {
        "settings": settings,
        "control": control,
        "cache_redis": cache_redis,
        "ledger": ledger,
        "draining": draining or Draining(),
        "degradation": DegradationReader(settings.metrics_dir),
        "active": active,
        "backend_calls": calls,
    }
    dependencies = {name: _provide(value) for name, value in objects.items()}
    dependencies["context"] = Provide(context, sync_to_thread=False)
    document = partial(operators_document, HANDLERS)
    return Application(
        route_handlers=[*HANDLERS, openapi_document, docs_page, docs_script, *extensions],
        dependencies=dependencies | {"openapi": provide_document(document)},
        middleware=[
            AdminAccess(
                directory,
                body_timeout=body_timeout,
                wants_certificate=settings.admin_tls_client_ca is not None,
            )
        ],
        exception_handlers={Exception: _problem, HTTPException: _problem},
        request_class=JsonRequest,
        openapi_config=None,
        logging_config=None,
    )


def _provide(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


def _problem(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    # A request for an unknown route is refused before the middleware assigns an id.
    request_id = str(request.scope["state"].get(REQUEST_ID) or new_id())
    headers = {"x-request-id": request_id}
    if isinstance(error, RequestTimeout):
        headers["connection"] = "close"  # the next bytes would be the rest of this body
    return problem_response(error, request_id, headers)
