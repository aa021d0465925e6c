"""The Litestar application of the API: raw inference routes, typed others, problems for errors."""

import logging
from typing import Any

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.handlers import ASGIRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.types import HTTPScope, Receive, Scope, Send

from backends.protocol import Task
from gateway.api.docs import docs_page, docs_script, openapi_document
from gateway.api.health import HealthController, ReadinessSource
from gateway.api.inference import InferenceDoor
from gateway.api.metadata import Documents, MetadataController, ModelCatalog, UsageSource
from gateway.api.problem_details import MEDIA_TYPE, encode_problem, problem_headers
from gateway.errors import GatewayError, InternalError, InvalidRequest, MethodNotAllowed, NotFound
from gateway.middleware.admission import REQUEST_ID, AdmissionMiddleware, Ids, response_headers

_log = logging.getLogger(__name__)
_RAW = {"raw": True}


def build_api(
    *,
    version: str,
    door: InferenceDoor,
    admission: AdmissionMiddleware,
    ids: Ids,
    models: ModelCatalog,
    documents: Documents,
    usage: UsageSource,
    health: ReadinessSource,
) -> Litestar:
    """Return the application; objects are made and owned by the caller."""

    def problem_of(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        state = request.scope["state"]
        state.setdefault(REQUEST_ID, ids.new())
        return _problem(request.scope, _known(error, str(state[REQUEST_ID])))

    return Litestar(
        route_handlers=[
            *(_raw_route(door, task) for task in Task),
            MetadataController,
            HealthController,
            openapi_document,
            docs_page,
            docs_script,
        ],
        dependencies={
            "models": Provide(lambda: models, sync_to_thread=False),
            "documents": Provide(lambda: documents, sync_to_thread=False),
            "usage": Provide(lambda: usage, sync_to_thread=False),
            "health": Provide(lambda: health, sync_to_thread=False),
        },
        signature_types=[ModelCatalog, Documents, UsageSource, ReadinessSource],
        middleware=[admission],
        exception_handlers={Exception: problem_of, HTTPException: problem_of},
        openapi_config=OpenAPIConfig(
            title="Sluicegate",
            version=version,
            description="Labels, choices, rankings, entities and vectors from small transformers.",
            render_plugins=[],
            enabled_endpoints=set(),
            use_handler_docstrings=True,
        ),
        logging_config=None,
    )


def _raw_route(door: InferenceDoor, task: Task) -> ASGIRouteHandler:
    """Return the route of `task`: a plain ASGI handler, since it is the hot path."""
    # Litestar gives raw handlers no path parameters; a mount is given the rest of the path.
    names_model = task is Task.INFER

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        model = scope["path"].strip("/") if names_model else ""
        await door.handle(task, model, _http(scope), receive, send)

    route = ASGIRouteHandler(f"/v1/{task}", opt=_RAW, is_mount=names_model)
    return route(handle)


def _http(scope: Scope) -> HTTPScope:
    if scope["type"] != ScopeType.HTTP:
        raise NotFound("This route answers HTTP only.")
    return scope


def _known(error: Exception, request_id: str) -> GatewayError:
    """Return `error` in the gateway's terms; a fault of ours is logged with the request's id."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, HTTPException) and error.status_code < InternalError.status:
        if error.status_code == NotFound.status:
            return NotFound("There is no such route; GET /docs shows those there are.")
        if error.status_code == MethodNotAllowed.status:
            return MethodNotAllowed("The route answers other methods; GET /docs shows which.")
        return InvalidRequest(f"The request does not fit the route: {error.detail}.")
    _log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return InternalError("This is our fault; report it with the `request_id`.")


def _problem(scope: Scope, error: GatewayError) -> Response[bytes]:
    headers = {name.decode(): value.decode() for name, value in response_headers(scope)}
    headers |= {name.decode(): value.decode() for name, value in problem_headers(error)}
    return Response(
        encode_problem(error, str(scope["state"][REQUEST_ID])),
        status_code=error.status,
        media_type=MEDIA_TYPE.decode(),
        headers=headers,
    )
