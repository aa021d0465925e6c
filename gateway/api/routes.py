"""Builds the Litestar application of the customers' API."""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import HTTPScope

from sluicegate.gateway.api.admission import PRINCIPAL, REQUEST_ID, AdmissionMiddleware
from sluicegate.gateway.api.application import Application
from sluicegate.gateway.api.code_samples import CUSTOMERS
from sluicegate.gateway.api.dialect import Dialect, error_format
from sluicegate.gateway.api.docs import docs_page, docs_script, openapi_document, provide_document
from sluicegate.gateway.api.error_handling import problem_response
from sluicegate.gateway.api.health import HealthController, ReadinessSource
from sluicegate.gateway.api.home import home_page
from sluicegate.gateway.api.inference_operations import INFERENCE_OPERATIONS
from sluicegate.gateway.api.inference_route import InferenceRoutes, normal_path
from sluicegate.gateway.api.key_rotation import KeyRotation, KeyRotationController
from sluicegate.gateway.api.metadata import MetadataController, ModelCatalog, UsageSource
from sluicegate.gateway.api.native_routes import NATIVE_ROUTES
from sluicegate.gateway.api.openapi import build_document, described_by_litestar
from sluicegate.gateway.api.past_requests import PastRequestController, RequestSource
from sluicegate.gateway.api.request_events import RequestLines
from sluicegate.gateway.batches.batch_access import BatchParts
from sluicegate.gateway.errors import InternalError
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.types import RequestId

CONTROLLERS = (
    MetadataController,
    KeyRotationController,
    PastRequestController,
    HealthController,
)
_ABOUT = (
    "Labels, choices, rankings, entities and vectors from small transformers.\n\n"
    "Send your key as `Authorization: Bearer KEY`. Every error has a stable `code`; its `detail`"
    " says what to do."
)
_TAGS = {
    "inference": "Ask a model: one route for each task.",
    "metadata": "Which models there are, and what was used.",
    "health": "Probes for balancers and orchestrators.",
}


def build_api(
    *,
    version: str,
    admission: AdmissionMiddleware,
    new_id: Callable[[], RequestId],
    models: ModelCatalog,
    runtimes: RuntimeStore,
    usage: UsageSource,
    requests: RequestSource,
    rotation: KeyRotation,
    health: ReadinessSource,
    routes: InferenceRoutes,
    batches: BatchParts,
    request_lines: RequestLines,
    dialects: Sequence[Dialect] = (),
) -> Litestar:
    """Return what answers all but inference requests; the caller makes and owns the objects."""

    def problem_of(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        state = request.scope["state"]
        if REQUEST_ID not in state:
            state[REQUEST_ID] = new_id()
        errors = error_format(routes, dialects, request.scope["path"])
        request_id = str(state[REQUEST_ID])
        response = problem_response(error, request_id, {"x-request-id": request_id}, errors)
        _log_failure(request_lines, request.scope, response.status_code, error)
        return response

    provided: dict[str, object] = {
        "models": models,
        "runtimes": runtimes,
        "usage": usage,
        "requests": requests,
        "rotation": rotation,
        "health": health,
        "files": batches.files,
        "batches": batches.batches,
        "endpoints": routes,
    }
    dependencies = {name: _provide(value) for name, value in provided.items()}
    document = partial(customers_document, version, tuple(dialects))
    return Application(
        route_handlers=[
            *CONTROLLERS,
            *(each for dialect in dialects for each in dialect.handlers),
            home_page,
            openapi_document,
            docs_page,
            docs_script,
        ],
        dependencies=dependencies | {"openapi": provide_document(document)},
        middleware=[admission],
        exception_handlers={Exception: problem_of, HTTPException: problem_of},
        openapi_config=None,
        logging_config=None,
    )


def _log_failure(
    lines: RequestLines, scope: HTTPScope, status: int | None, error: Exception
) -> None:
    state = scope["state"]
    lines.add_failure(
        str(state[REQUEST_ID]),
        scope.get("path_template", ""),
        state.get(PRINCIPAL),
        status=status or InternalError.status,
        code=getattr(error, "code", InternalError.code),
    )


def inference_routes(dialects: Sequence[Dialect]) -> InferenceRoutes:
    """Return the routes that the core answers. A dialect's may take the place of a native one."""
    return InferenceRoutes([*NATIVE_ROUTES, *(route for one in dialects for route in one.routes)])


def changing_routes(
    application: Litestar, inference: InferenceRoutes
) -> Callable[[str, str], bool]:
    """Return what tells whether a method other than `GET` is answered at a decoded path."""
    others: dict[str, list[str]] = {}
    for route in application.routes:
        if isinstance(route, HTTPRoute):
            path = "".join([_pattern_of(part) for part in route.path_components])
            for method in {*route.methods} - {"GET", "HEAD", "OPTIONS"}:
                others.setdefault(method, []).append(path)
    patterns = {method: re.compile("|".join(paths)) for method, paths in others.items()}

    def answers(method: str, path: str) -> bool:
        path = normal_path(path)
        if method == "POST" and inference.find(path) is not None:
            return True
        pattern = patterns.get(method)
        return pattern is not None and pattern.fullmatch(path) is not None

    return answers


def _pattern_of(part: Any) -> str:
    """Return the regular expression of a part of a path, after a slash."""
    if isinstance(part, str):
        return "/" + re.escape(part)
    return "/.+" if part.type is Path else "/[^/]+"


@cache
def customers_document(version: str, dialects: tuple[Dialect, ...] = ()) -> bytes:
    """Return the OpenAPI document as JSON, made from an application of its own.

    Litestar would serve its own document, without the inference routes, under a path of its own.
    """
    handlers = [handler for dialect in dialects for handler in dialect.handlers]
    described = {
        ("post", route.template): operation
        for dialect in dialects
        for route, operation in dialect.routes.items()
        if operation is not None
    }
    for dialect in dialects:
        described |= dialect.operations
    return build_document(
        described_by_litestar([*CONTROLLERS, *handlers]),
        INFERENCE_OPERATIONS | described,
        title="Sluicegate",
        version=version,
        description=_ABOUT,
        key="An API key, which an operator creates.",
        tags=_TAGS | {dialect.name: dialect.description for dialect in dialects},
        samples=CUSTOMERS,
        takes_idempotency_keys=True,
    )


def _provide(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)
