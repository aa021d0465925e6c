"""The OpenAPI document: Litestar's of its own handlers, with the raw inference routes put in.

Litestar describes errors as it would send them itself; these are replaced by problems.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from backends.protocol import Task
from gateway.api.problem_details import Problem
from gateway.api.results import RESULTS, FailedResult, InferenceAnswer
from gateway.api.schemas import TASK_BODIES, Body, InferBody

_REF = "#/components/schemas/{name}"
_Json = dict[str, Any]  # an OpenAPI document is free-form JSON

_SUMMARIES = {
    Task.CLASSIFY: "Label texts with a trained classifier",
    Task.ZERO_SHOT: "Label texts with labels of your own",
    Task.CHOOSE: "Choose the best of some options",
    Task.RERANK: "Order documents by a query",
    Task.ENTITIES: "Find named entities",
    Task.EMBED: "Turn texts into vectors",
    Task.INFER: "Run a model's own algorithm",
}

_EXAMPLES: dict[Task, _Json] = {
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

_REQUEST_HEADERS = (
    ("X-Request-Timeout", "Seconds the request may take, up to the configured maximum.", "number"),
    (
        "Sluicegate-Criticality",
        "`critical`, `default`, `sheddable`: what is refused first while backends are full.",
        "string",
    ),
    (
        "Cache-Control",
        "`no-cache`, `no-store`, `max-age=N`, `max-stale[=N]`, `only-if-cached`.",
        "string",
    ),
    ("X-Server-Timing", "Send any value to get a `Server-Timing` header.", "string"),
)

_RESPONSES = {
    "400": "The request cannot be read, or the model answers other tasks",
    "401": "The API key is missing, unknown or revoked",
    "403": "The key may not use the model",
    "404": "No such model",
    "408": "The body did not arrive in time",
    "413": "The body is too large or has too many items",
    "422": "An item cannot be answered; `index` names it",
    "429": "A limit is used up; see `Retry-After`",
    "502": "A backend answered with an error of its own",
    "503": "No backend can answer now; see `Retry-After`",
    "504": "The request's time ran out, or the answer is not cached and had to be",
}

# Of the routes that only read: those that every one may answer with.
_READING_RESPONSES = {
    "401": _RESPONSES["401"],
    "429": _RESPONSES["429"],
    "503": "A store that is needed cannot be reached; see `Retry-After`",
}


def encode_document(own: _Json) -> bytes:
    """Return the whole document as JSON; `own` is Litestar's."""
    return msgspec.json.encode(with_inference_routes(own))


def with_inference_routes(document: _Json) -> _Json:
    """Return `document` with a path for each task, its bodies and its problems."""
    bodies: list[type[Body]] = [*TASK_BODIES, InferBody]
    types = [*bodies, Problem, InferenceAnswer, FailedResult, *RESULTS.values()]
    references, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip([str(t) for t in types], references, strict=True))
    problem = by_type[str(Problem)]
    paths: _Json = {}
    for body in bodies:
        answer = _answer_schema(by_type[str(RESULTS[body.task])], by_type[str(FailedResult)])
        operation = _operation(body.task, by_type[str(body)], answer, problem)
        path = "/v1/infer/{model}" if body.task is Task.INFER else f"/v1/{body.task}"
        paths[path] = {"post": operation}
    merged = dict(document)
    for path, methods in document.get("paths", {}).items():
        paths[path] = {name: _reading(path, own, problem) for name, own in methods.items()}
    merged["paths"] = paths
    own = document.get("components", {})
    merged["components"] = own | {
        "schemas": components | own.get("schemas", {}),
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    merged["security"] = [{"key": []}]
    return merged


def _answer_schema(result: _Json, failed: _Json) -> _Json:
    return {
        "allOf": [
            {"$ref": _REF.format(name="InferenceAnswer")},
            {
                "type": "object",
                "properties": {"results": {"type": "array", "items": {"anyOf": [result, failed]}}},
            },
        ]
    }


def _operation(task: Task, body: _Json, answer: _Json, problem: _Json) -> _Json:
    parameters: list[_Json] = [
        {"name": name, "in": "header", "description": text, "schema": {"type": kind}}
        for name, text, kind in _REQUEST_HEADERS
    ]
    if task is Task.INFER:
        schema = {"type": "string"}
        parameters.append({"name": "model", "in": "path", "required": True, "schema": schema})
    examples = {"demo": {"summary": "With a demo model", "value": _EXAMPLES[task]}}
    content = {"application/json": {"schema": body, "examples": examples}}
    responses: _Json = {
        "200": {
            "description": "An answer for each item",
            "content": {"application/json": {"schema": answer}},
        }
    }
    responses |= _problems(_RESPONSES, problem)
    return {
        "operationId": task.replace("-", "_"),
        "summary": _SUMMARIES[task],
        "tags": ["inference"],
        "parameters": parameters,
        "requestBody": {"required": True, "content": content},
        "responses": responses,
    }


def _reading(path: str, operation: _Json, problem: _Json) -> _Json:
    """Return one of Litestar's operations, its errors as they are; health needs no key."""
    if "health" in operation["tags"]:
        return operation | {"security": []}
    errors = dict(_READING_RESPONSES)
    if "400" in operation["responses"]:
        errors["400"] = "A parameter cannot be read"
    if "{" in path:
        errors["404"] = _RESPONSES["404"]
    responses = operation["responses"] | _problems(errors, problem)
    return operation | {"responses": dict(sorted(responses.items()))}


def _problems(descriptions: Mapping[str, str], problem: _Json) -> _Json:
    content = {"application/problem+json": {"schema": problem}}
    return {
        status: {"description": description, "content": content}
        for status, description in descriptions.items()
    }
