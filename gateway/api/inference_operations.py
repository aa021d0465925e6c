"""Describes the inference routes for the OpenAPI document; others stand beside their handlers."""

from sluicegate.gateway.api.openapi_parts import (
    TIMEOUT_HEADER,
    Content,
    Json,
    Kind,
    Operation,
    request_header,
)
from sluicegate.gateway.api.schemas import BODIES, Body, EmbedBody, InferBody
from sluicegate.gateway.errors import (
    BudgetExhausted,
    DeadlineExceeded,
    DependencyUnavailable,
    EventLogUnavailable,
    ExpansionTooLarge,
    GatewayError,
    InvalidItem,
    ModelNotFound,
    NotCached,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    RateLimited,
    TaskNotSupported,
    UnsupportedContentCoding,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.gateway.types import Criticality, Usage

INFERENCE_ERRORS: tuple[type[GatewayError], ...] = (
    TaskNotSupported,
    BudgetExhausted,
    PermissionDenied,
    ModelNotFound,
    PayloadTooLarge,
    UnsupportedContentCoding,
    InvalidItem,
    ExpansionTooLarge,
    RateLimited,
    UpstreamFailed,
    UpstreamUnavailable,
    EventLogUnavailable,
    DependencyUnavailable,
    DeadlineExceeded,
    NotCached,
)
INFERENCE_HEADERS = (
    TIMEOUT_HEADER,
    request_header(
        "Sluicegate-Criticality",
        "While backends are full, `sheddable` requests are refused first and `critical` ones last.",
        {"type": "string", "enum": list(Criticality), "default": Criticality.DEFAULT.value},
        "sheddable",
    ),
    request_header(
        "Cache-Control",
        "Whether the cache may answer: `no-cache`, `no-store`, `max-age=N`, `max-stale[=N]`, "
        "`only-if-cached`.",
        {"type": "string"},
        "max-age=60",
    ),
    request_header(
        "X-Server-Timing",
        "With any value, the answer says in `Server-Timing` how long each phase took.",
        {"type": "string"},
        "1",
    ),
    request_header(
        "traceparent",
        "Joins the request to the caller's trace (W3C Trace Context).",
        {"type": "string"},
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
)
_VECTORS = Content(
    media="application/octet-stream",
    schema={"type": "string", "format": "binary"},
    summary="With `encoding_format: bytes`: vectors, little-endian, one after another",
)
_MODEL: Json = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "The name of a model.",
    "schema": {"type": "string", "minLength": 1},
    "example": "reviewer",
}


def _operation(body: type[Body]) -> Operation:
    usage = dict.fromkeys(Usage.__struct_fields__, 0)
    results = body.answer.example
    items = len(results)
    answer = {
        "model": body.example.get("model", "reviewer"),
        "revision": "9f2c51d0a7be",
        "results": results,
        "usage": usage | {"items": items, "computed": items, "rows": items, "tokens": 9 * items},
    }
    is_named = body is InferBody
    return Operation(
        id=body.task.replace("-", "_"),
        summary=body.summary,
        tag="inference",
        kind=Kind.INFERENCE,
        errors=(*INFERENCE_ERRORS, NotFound) if is_named else INFERENCE_ERRORS,
        body=(Content(type=body, summary="With a demo model", example=body.example),),
        answers={
            200: (
                Content(type=body.answer, summary="A result for each item", example=answer),
                *([_VECTORS] if body is EmbedBody else []),
            )
        },
        headers=("Sluicegate-Vectors",) if body is EmbedBody else (),
        parameters=(*INFERENCE_HEADERS, _MODEL) if is_named else INFERENCE_HEADERS,
    )


INFERENCE_OPERATIONS = {
    ("post", f"/v1/{body.task}" + "/{model}" * (body is InferBody)): _operation(body)
    for body in BODIES
}
