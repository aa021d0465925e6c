"""The Litestar application of the API: raw inference routes, typed others, problems for errors."""

import logging
from collections.abc import Mapping
from typing import Any

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.handlers import ASGIRouteHandler
from litestar.types import HTTPScope, Receive, Scope, Send

from backends.protocol import Task
from gateway.api.application import Application
from gateway.api.customer_operations import OPERATIONS, TAGS
from gateway.api.docs import docs_page, docs_script, openapi_document
from gateway.api.health import HealthController, ReadinessSource
from gateway.api.inference_handler import InferenceHandler
from gateway.api.metadata import Documents, MetadataController, ModelCatalog, UsageSource
from gateway.api.openapi import Described, build_document, described_by_litestar
from gateway.api.problem_details import MEDIA_TYPE, encode_problem, problem_headers
from gateway.errors import GatewayError, InternalError, InvalidRequest, MethodNotAllowed, NotFound
from gateway.middleware.admission import REQUEST_ID, AdmissionMiddleware, Ids, response_headers

_log = logging.getLogger(__name__)
_DESCRIBED = (MetadataController, HealthController)
_RAW = {"raw": True}
_NO_ROUTE = "There is no such route; GET /docs shows those there are."


def build_api(
    *,
    version: str,
    door: InferenceHandler,
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
        if REQUEST_ID not in state:
            state[REQUEST_ID] = ids.new()
        response = _problem(request.scope, _known(error, str(state[REQUEST_ID])))
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})  # `Allow`
        return response

    provided: dict[str, object] = {
        "models": models,
        "documents": documents,
        "usage": usage,
        "health": health,
    }
    dependencies = {name: _provide(value) for name, value in provided.items()}
    document = customers_document(version, dependencies)
    return Application(
        route_handlers=[
            *(_raw_route(door, task) for task in Task),
            *_DESCRIBED,
            openapi_document,
            docs_page,
            docs_script,
        ],
        dependencies=dependencies | {"openapi": _provide(document)},
        middleware=[admission],
        exception_handlers={Exception: problem_of, HTTPException: problem_of},
        openapi_config=None,
        logging_config=None,
    )


def customers_document(version: str, dependencies: Mapping[str, Provide]) -> bytes:
    """Return the OpenAPI document as JSON, made from an application of its own.

    Litestar would serve what it knows, without the raw routes, under a path of its own too.
    """
    about = Described(
        title="Sluicegate",
        version=version,
        description="Labels, choices, rankings, entities and vectors from small transformers.",
        key="An API key, which an operator creates.",
        tags=TAGS,
    )
    return build_document(about, described_by_litestar(_DESCRIBED, dependencies), OPERATIONS)


def _provide(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


def _raw_route(door: InferenceHandler, task: Task) -> ASGIRouteHandler:
    """Return the route of `task`: a plain ASGI handler, since it is the hot path."""
    # Litestar gives raw handlers no path parameters; a mount is given the rest of the path.
    names_model = task is Task.INFER

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        model = _model_in(scope["path"]) if names_model else ""
        await door.handle(task, model, _http(scope), receive, send)

    route = ASGIRouteHandler(f"/v1/{task}", opt=_RAW, is_mount=names_model, copy_scope=False)
    return route(handle)


def _model_in(rest: str) -> str:
    """Return the model that the rest of a path names; `/v1/inferno` is another route, not one."""
    model = rest.strip("/")
    if not model or not rest.startswith("/"):
        raise NotFound(_NO_ROUTE)
    return model


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
            return NotFound(_NO_ROUTE)
        if error.status_code == MethodNotAllowed.status:
            return MethodNotAllowed("The route answers other methods; GET /docs shows which.")
        return InvalidRequest(f"The request does not fit the route: {_reason(error)}.")
    _log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return InternalError("This is our fault; report it with the `request_id`.")


def _reason(error: HTTPException) -> str:
    """Return what was wrong, with the names of the parameters where they are known."""
    extra = error.extra if isinstance(error.extra, list) else []
    parts = [f"`{e['key']}`: {e['message']}" for e in extra if isinstance(e, dict) and "key" in e]
    return "; ".join(parts) or error.detail


def _problem(scope: Scope, error: GatewayError) -> Response[bytes]:
    headers = {name.decode(): value.decode() for name, value in response_headers(scope)}
    headers |= {name.decode(): value.decode() for name, value in problem_headers(error)}
    return Response(
        encode_problem(error, str(scope["state"][REQUEST_ID])),
        status_code=error.status,
        media_type=MEDIA_TYPE.decode(),
        headers=headers,
    )
