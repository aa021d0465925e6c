"""Serves the routes of the Open Inference Protocol v2 that do not run a model.

One Litestar handler serves all these routes, because each handler would add a millisecond to the
start of a process.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import version as version_of
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Response, get, route
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.exceptions import MethodNotAllowedException
from litestar.params import FromPath, SkipValidation
from litestar.status_codes import HTTP_204_NO_CONTENT

from sluicegate.gateway.api.error_handling import NO_ROUTE
from sluicegate.gateway.api.health import ReadinessSource
from sluicegate.gateway.api.inference_route import path_pattern
from sluicegate.gateway.api.metadata import AnyRequest, Models, Runtimes, principal_of
from sluicegate.gateway.api.openapi_parts import Content, Json, Kind, Operation
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS
from sluicegate.gateway.dialects.oip.models import (
    FoundModel,
    OipIndexEntry,
    OipModelConfig,
    OipModelMetadata,
    OipModelStatistics,
    OipServerMetadata,
    find_model,
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
)
from sluicegate.gateway.errors import (
    DependencyUnavailable,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    RateLimited,
)
from sluicegate.gateway.inference.visibility import visible_models
from sluicegate.gateway.types import ServedModel

_READY, _NOT_READY = 200, 503
_NO_MEMORY = "Shared memory is not supported; send tensors in the body."
_NO_TRACES = "Operators configure tracing; send `traceparent` to add a request to a trace."
_REFUSED: Final = {
    r"/v2/repository/models/.+/(un)?load": (
        "Clients cannot load or unload models; operators do, with `sluicegate models`."
    ),
    r"/v2/(system|cuda)sharedmemory/.+": _NO_MEMORY,
    r"/v2(/models/[^/]+)?/trace/setting": _NO_TRACES,
    r"/v2/logging": "Clients cannot configure logs; operators do.",
}


class OipLiveness(msgspec.Struct, frozen=True, kw_only=True):
    """The process is running."""

    live: bool = True
    """Always `true`."""


class OipReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests can be answered."""

    ready: bool
    """Whether requests can be answered."""


class OipModelReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests to a model can be answered."""

    name: str
    """The name to use in requests."""
    ready: bool
    """Whether requests can be answered."""


class OipStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of models. Their statistics are always 0."""

    model_stats: list[OipModelStatistics]
    """The statistics of each version."""


class _RouteRequest(NamedTuple):
    """Holds a handler's data: for example, visible models and the path's parameters."""

    visible: list[ServedModel]
    document: Document
    is_ready: bool
    name: str = ""
    version: str = ""

    def found(self) -> FoundModel:
        """Return the model that the path names."""
        served = {one.info.name: one for one in self.visible}
        found = find_model(served.get, self.name, self.version)
        return found._replace(visible=self.visible)


def _server(_: _RouteRequest) -> OipServerMetadata:
    return OipServerMetadata(version=_version())


def _model(data: _RouteRequest) -> OipModelMetadata:
    return model_metadata(data.found(), data.name, data.version)


def _config(data: _RouteRequest) -> OipModelConfig:
    return model_config(data.found(), data.name, max_items=data.document.request.max_items)


def _model_ready(data: _RouteRequest) -> OipModelReadiness:
    data.found().known()
    return OipModelReadiness(name=data.name, ready=data.is_ready)


def _model_stats(data: _RouteRequest) -> OipStatistics:
    data.found().known()
    found = model_statistics([one for one in data.visible if one.info.name == data.name])
    return OipStatistics(model_stats=[one for one in found if data.version in ("", one.version)])


def _stats(data: _RouteRequest) -> OipStatistics:
    return OipStatistics(model_stats=model_statistics(data.visible))


def _index(data: _RouteRequest) -> list[OipIndexEntry]:
    return repository_index(data.visible)


_Handler = Callable[[_RouteRequest], Any]


class _Route(NamedTuple):
    answer: _Handler
    operation: Operation


_operation = partial(Operation, tag="open-inference", error_format=OIP_ERRORS)
_NAMES: dict[str, tuple[str, str]] = {
    "model": ("The name of a model.", "sentiment"),
    "version": ("The number of one of its revisions.", "1"),
}
_NOT_READY_ANSWER = (Content(type=OipReadiness, summary="Not ready, or too many connections"),)


def _routes() -> dict[tuple[str, str], _Route]:
    """Return the routes by method and path."""
    found = {
        ("get", "/v2"): _limited(_server, "server", "What the gateway is", OipServerMetadata),
        ("get", "/v2/models/stats"): _limited(
            _stats, "statistics", "Statistics of all models, which are 0", OipStatistics
        ),
        ("post", "/v2/repository/index"): _limited(
            _index, "index", "The models this key may use", list[OipIndexEntry]
        ),
    }
    for path, names in (
        ("/v2/models/{model}", ("model",)),
        ("/v2/models/{model}/versions/{version}", ("model", "version")),
    ):
        kind = names[-1]
        for answer, suffix, summary, returned in (
            (_model, "", "Inputs and outputs of a model", OipModelMetadata),
            (_config, "/config", "The configuration of a model", OipModelConfig),
            (_model_ready, "/ready", "Whether a model is ready", OipModelReadiness),
            (_model_stats, "/stats", "Statistics of a model, which are 0", OipStatistics),
        ):
            name = f"{kind}{suffix.replace('/', '_')}"
            found["get", path + suffix] = _limited(answer, name, summary, returned, names)
    return found


def _limited(
    answer: _Handler,
    name: str,
    summary: str,
    returned: Any,
    names: tuple[str, ...] = (),
) -> _Route:
    answers = {_READY: (Content(type=returned, summary=summary),)}
    if answer is _model_ready:
        answers[_NOT_READY] = _NOT_READY_ANSWER
    operation = _operation(
        id=f"oip_{name}",
        summary=summary,
        kind=Kind.LIMITED,
        errors=(RateLimited, DependencyUnavailable, *([ModelNotFound] if names else ())),
        answers=answers,
        parameters=tuple([_parameter(one) for one in names]),
    )
    return _Route(answer, operation)


def _parameter(name: str) -> Json:
    description, example = _NAMES[name]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "minLength": 1},
        "example": example,
    }


def _probe(name: str, summary: str, returned: Any) -> Operation:
    answers = {_READY: (Content(type=returned, summary=summary),)}
    if returned is OipReadiness:
        answers[_NOT_READY] = _NOT_READY_ANSWER
    return _operation(id=f"oip_{name}", summary=summary, is_public=True, answers=answers)


_ROUTES = _routes()
_PATTERNS = [
    (method.upper(), re.compile(path_pattern(path)), one.answer)
    for (method, path), one in _ROUTES.items()
]
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("get", "/v2/health/live"): _probe("live", "Whether the process answers", OipLiveness),
    ("get", "/v2/health/ready"): _probe("ready", "Whether requests are answered", OipReadiness),
} | {name: one.operation for name, one in _ROUTES.items()}
"""The operations of all routes for the OpenAPI document."""
Health = NamedDependency[SkipValidation[ReadinessSource]]


@get("/v2/health/{probe:str}", opt={"public": True}, include_in_schema=False)
async def probe_health(probe: FromPath[str], health: Health) -> Response[Any]:
    """Return status 200 if the process is live or ready, else 503.

    The path says whether liveness or readiness is checked.
    """
    if probe == "live":
        return Response(OipLiveness())
    if probe != "ready":
        raise NotFound("There is no such probe; use `/v2/health/live` or `/v2/health/ready`.")
    return _readiness_response(OipReadiness(ready=health.readiness().ready))


@route(
    ["/v2", "/v2/{rest:path}"],
    http_method=["GET", "POST", "OPTIONS"],
    include_in_schema=False,
    opt={"own_methods": True},
)
async def answer_route(
    request: AnyRequest,
    models: Models,
    runtimes: Runtimes,
    health: Health,
) -> Response[Any]:
    """Serve one of the routes that describe the gateway or its models.

    The protocol's routes for operators are refused.
    """
    path = request.scope["path"].rstrip("/")
    if request.method == HttpMethod.OPTIONS:
        allowed = {method for method, pattern, _ in _PATTERNS if pattern.fullmatch(path)}
        headers = {"allow": ", ".join(sorted({HttpMethod.OPTIONS, *allowed}))}
        return Response(None, status_code=HTTP_204_NO_CONTENT, headers=headers)
    answer, names = _routed(request.method, path)
    document, principal = runtimes.current.document, principal_of(request)
    data = _RouteRequest(
        visible=visible_models(models.models(), document, principal),
        document=document,
        is_ready=health.readiness().ready,
        name=names.get("model", ""),
        version=names.get("version", ""),
    )
    return _readiness_response(answer(data))


def _routed(request_method: str, path: str) -> tuple[_Handler, dict[str, str]]:
    """Return the function that serves a path, and the values of the path's parameters.

    Raises:
        MethodNotAllowedException: the path exists, but not with this method.
        GatewayError: the path does not exist or is refused.
    """
    methods = set()
    for method, pattern, answer in _PATTERNS:
        if (match := pattern.fullmatch(path)) is not None:
            if method == request_method:
                return answer, match.groupdict()
            methods.add(method)
    if methods:
        raise MethodNotAllowedException(headers={"allow": ", ".join(sorted(methods))})
    for refused, why in _REFUSED.items():
        if re.fullmatch(refused, path):
            raise InvalidRequest(why)
    raise NotFound(NO_ROUTE)


def _readiness_response(answer: Any) -> Response[Any]:
    is_ready = getattr(answer, "ready", True)
    return Response(answer, status_code=_READY if is_ready else _NOT_READY)


@cache
def _version() -> str:
    return version_of("sluicegate")
