"""Lists the operations of the customers' OpenAPI document."""

from backends.protocol import Task
from gateway.api.health import Readiness
from gateway.api.metadata import ModelCard, ModelList
from gateway.api.openapi_parts import Content, Json, Kind, Operation
from gateway.api.results import ANSWERS
from gateway.api.schemas import TASK_BODIES, Body, InferBody
from gateway.errors import (
    DeadlineExceeded,
    DependencyUnavailable,
    EventLogUnavailable,
    GatewayError,
    InvalidItem,
    ModelNotFound,
    NotCached,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    RateLimited,
    TaskNotSupported,
    UpstreamFailed,
    UpstreamUnavailable,
)
from gateway.types import Criticality, Usage

TAGS = {
    "inference": "Answers of models; a task each.",
    "metadata": "Which models there are, and what was used.",
    "health": "Probes for balancers and orchestrators.",
}

_SUMMARIES = {
    Task.CLASSIFY: "Label texts with a trained classifier",
    Task.ZERO_SHOT: "Label texts with labels of your own",
    Task.CHOOSE: "Choose the best of some options",
    Task.RERANK: "Order documents by a query",
    Task.ENTITIES: "Find named entities",
    Task.EMBED: "Turn texts into vectors",
    Task.INFER: "Run a model's own algorithm",
}

_EXAMPLES: dict[Task, Json] = {
    Task.CLASSIFY: {"model": "sentiment", "input": ["a gorgeous, witty movie", "labored gags"]},
    Task.ZERO_SHOT: {
        "model": "topics",
        "input": "The striker scored twice.",
        "labels": ["sports", "business"],
    },
    Task.CHOOSE: {
        "model": "topics",
        "input": {"prompt": "I cannot log in.", "choices": ["billing", "account access"]},
    },
    Task.RERANK: {
        "model": "minilm",
        "query": "How do I reset my card PIN?",
        "documents": ["Change your PIN at any cash machine.", "We are hiring."],
        "return_documents": True,
    },
    Task.ENTITIES: {"model": "entities-demo", "input": "Angela Merkel visited Paris."},
    Task.EMBED: {"model": "minilm", "input": "a sentence"},
    Task.INFER: {"inputs": ["My card was charged twice and nobody answers!"]},
}
_RESULTS: dict[Task, list[Json]] = {
    Task.CLASSIFY: [
        {"labels": [{"label": "positive", "score": 0.98}, {"label": "negative", "score": 0.02}]},
        {"labels": [{"label": "negative", "score": 0.97}, {"label": "positive", "score": 0.03}]},
    ],
    Task.ZERO_SHOT: [
        {"labels": [{"label": "sports", "score": 0.91}, {"label": "business", "score": 0.09}]}
    ],
    Task.CHOOSE: [{"choice": 1, "scores": [0.2, 0.8]}],
    Task.RERANK: [
        {"index": 0, "score": 0.71, "document": "Change your PIN at any cash machine."},
        {"index": 1, "score": 0.05, "document": "We are hiring."},
    ],
    Task.ENTITIES: [
        {
            "entities": [
                {"label": "PER", "score": 0.99, "text": "Angela Merkel", "start": 0, "end": 13}
            ]
        }
    ],
    Task.EMBED: [{"embedding": [0.0676, 0.0635, 0.0487]}],
    Task.INFER: [{"mood": "negative", "topic": "billing"}],
}

_INFERENCE_ERRORS: tuple[type[GatewayError], ...] = (
    TaskNotSupported,
    PermissionDenied,
    ModelNotFound,
    PayloadTooLarge,
    InvalidItem,
    RateLimited,
    UpstreamFailed,
    UpstreamUnavailable,
    EventLogUnavailable,
    DependencyUnavailable,
    DeadlineExceeded,
    NotCached,
)
_READING_ERRORS = (RateLimited, DependencyUnavailable)


def _header(name: str, description: str, schema: Json, example: object) -> Json:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema,
        "example": example,
    }


_INFERENCE_HEADERS = (
    _header(
        "X-Request-Timeout",
        "Seconds the request may take, up to the configured maximum.",
        {"type": "number", "exclusiveMinimum": 0},
        2.5,
    ),
    _header(
        "Sluicegate-Criticality",
        "What is refused first while backends are full.",
        {"type": "string", "enum": list(Criticality), "default": Criticality.DEFAULT.value},
        "sheddable",
    ),
    _header(
        "Cache-Control",
        "`no-cache`, `no-store`, `max-age=N`, `max-stale[=N]`, `only-if-cached`.",
        {"type": "string"},
        "max-age=60",
    ),
    _header("X-Server-Timing", "Any value asks for `Server-Timing`.", {"type": "string"}, "1"),
    _header(
        "traceparent",
        "Joins the request to the caller's trace (W3C Trace Context).",
        {"type": "string"},
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
)
_IF_NONE_MATCH = _header(
    "If-None-Match", "The `ETag` of an answer that is known.", {"type": "string"}, '"5f2c"'
)
_MODEL: Json = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "The name of a model.",
    "schema": {"type": "string", "minLength": 1},
    "example": "reviewer",
}
MOMENT: Json = {
    "description": "A date, or a time of RFC 3339; without a zone it is UTC.",
    "schema": {"anyOf": [{"type": "string", "format": form} for form in ("date", "date-time")]},
    "example": "2026-11-01",
}
_NOT_MODIFIED = Content(media="", summary="What is known has not changed")


def _inference(body: type[Body]) -> Operation:
    task = body.task
    answer = {
        "model": _EXAMPLES[task].get("model", "reviewer"),
        "revision": "9f2c51d0a7be",
        "results": _RESULTS[task],
        "usage": _computed(len(_RESULTS[task])),
    }
    is_named = body is InferBody
    return Operation(
        id=task.replace("-", "_"),
        summary=_SUMMARIES[task],
        tag="inference",
        kind=Kind.INFERENCE,
        errors=(*_INFERENCE_ERRORS, NotFound) if is_named else _INFERENCE_ERRORS,
        body=(Content(type=body, summary="With a demo model", example=_EXAMPLES[task]),),
        answers={
            200: (Content(type=ANSWERS[task], summary="A result for each item", example=answer),)
        },
        parameters=(*_INFERENCE_HEADERS, _MODEL) if is_named else _INFERENCE_HEADERS,
    )


def _computed(items: int) -> Json:
    usage = dict.fromkeys(Usage.__struct_fields__, 0)
    return usage | {"items": items, "computed": items, "rows": items, "tokens": 9 * items}


def _path(body: type[Body]) -> str:
    return "/v1/infer/{model}" if body is InferBody else f"/v1/{body.task}"


OPERATIONS: dict[tuple[str, str], Operation] = {
    **{("post", _path(body)): _inference(body) for body in (*TASK_BODIES, InferBody)},
    ("get", "/v1/models"): Operation(
        id="list_models",
        summary="The models this key may use",
        tag="metadata",
        kind=Kind.LIMITED,
        errors=_READING_ERRORS,
        answers={
            200: (Content(type=ModelList, summary="The models"),),
            304: (_NOT_MODIFIED,),
        },
        headers=("ETag",),
        parameters=(_IF_NONE_MATCH,),
    ),
    ("get", "/v1/models/{model}"): Operation(
        id="get_model",
        summary="One model",
        tag="metadata",
        kind=Kind.LIMITED,
        errors=(*_READING_ERRORS, ModelNotFound, NotFound),
        answers={
            200: (Content(type=ModelCard, summary="The model"),),
            304: (_NOT_MODIFIED,),
        },
        headers=("ETag",),
        parameters=(_IF_NONE_MATCH,),
        about={"model": {"description": "The name of a model.", "example": "sentiment"}},
    ),
    ("get", "/v1/usage"): Operation(
        id="get_usage",
        summary="The calling tenant's usage and cost",
        tag="metadata",
        kind=Kind.LIMITED,
        errors=_READING_ERRORS,
        parameters=_INFERENCE_HEADERS[:1],
        about={
            "from": MOMENT,
            "to": MOMENT | {"example": "2026-12-01T00:00:00Z"},
            "group_by": {
                "description": "What a line is for; may be repeated. `model` where it is left out.",
                "example": ["model", "day"],
            },
        },
    ),
    ("get", "/health/live"): Operation(
        id="is_live", summary="Whether the process answers", tag="health", is_public=True
    ),
    ("get", "/health/ready"): Operation(
        id="is_ready",
        summary="Whether requests can be answered",
        tag="health",
        is_public=True,
        answers={
            200: (Content(type=Readiness, summary="Ready"),),
            503: (Content(type=Readiness, summary="Not ready, or too many connections"),),
        },
    ),
}
