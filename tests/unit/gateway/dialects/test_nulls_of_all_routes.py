"""On every inference route a null of an optional field is the field left out."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from sluicegate.gateway.api.inference_operations import INFERENCE_OPERATIONS
from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute, RequestBody
from sluicegate.gateway.api.native_routes import NATIVE_ROUTES
from sluicegate.gateway.api.openapi_parts import Operation
from sluicegate.gateway.config.document import Document, ModelConfig
from sluicegate.gateway.dialects.hugging_face_tasks import PIPELINES
from sluicegate.gateway.dialects.registry import DIALECTS
from sluicegate.gateway.http.body_decoding import UnknownField
from sluicegate.wire.protocol import Task
from tests.support.dialects import GUARDS, ROUTERS
from tests.support.inference_scene import INFO, Models

_MARK = b"\xef\xbb\xbf"
_TASKS = {
    "sentiment": [Task.CLASSIFY],
    "minilm": [Task.EMBED, Task.RERANK],
    "topics": [Task.ZERO_SHOT, Task.CHOOSE],
    "entities-demo": [Task.ENTITIES],
    "reviewer": [Task.INFER],
}
_MODELS = Models(
    *[
        msgspec.structs.replace(INFO, name=name, tasks=tasks, labels=["toxic"])
        for name, tasks in _TASKS.items()
    ]
)
_DOCUMENT = Document(
    models={"sentiment": ModelConfig(moderation={"toxic": "hate"})}, guards=GUARDS, routers=ROUTERS
)


def documented_routes() -> dict[str, tuple[InferenceRoute, Operation]]:
    """Return every inference route, and what the OpenAPI document says of it, by its path."""
    native = {
        route.path: (route, INFERENCE_OPERATIONS["post", route.template]) for route in NATIVE_ROUTES
    }
    return native | {
        route.path: (route, operation)
        for dialect in DIALECTS
        for route, operation in dialect.routes.items()
        if operation is not None
    }


ROUTES = documented_routes()


def decoded(path: str, body: dict[str, Any], mark: bytes = b"") -> tuple[RequestBody, Any]:
    """Return a body as its route reads it, and the request that it makes."""
    route, operation = ROUTES[path]
    parameters = {
        one["name"]: one["example"] for one in operation.parameters if one["in"] == "path"
    }
    source = BodySource(
        raw=mark + msgspec.json.encode(body),
        parameters=parameters,
        fields=(b"",) * len(route.headers),
        document=_DOCUMENT,
        models=_MODELS,
        principal=None,
    )
    found = route.decode(source)
    return found, found.request(parameters.get("model", ""))


def example(path: str) -> dict[str, Any]:
    """Return a body of a route that belongs to the caller of this function."""
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(ROUTES[path][1].body[0].example))
    return body


def objects(kind: inspect.Type, value: Any) -> Iterator[tuple[inspect.StructType, dict[str, Any]]]:
    """Yield the objects in a value with their types."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(each, inspect.StructType) and isinstance(value, dict):
            yield each, value
            for field in each.fields:
                yield from objects(field.type, value.get(field.encode_name))
        elif isinstance(each, inspect.ListType) and isinstance(value, list):
            for one in value:
                yield from objects(each.item_type, one)


def optional_fields() -> Iterator[tuple[str, int, str]]:
    """Yield the optional fields: the path, the number of the object in the example, the name."""
    for path, (_, operation) in ROUTES.items():
        kind = inspect.type_info(operation.body[0].type)
        for number, (each, _) in enumerate(objects(kind, example(path))):
            for field in each.fields:
                if not field.required:
                    yield path, number, field.encode_name


@pytest.mark.parametrize(("path", "number", "name"), list(optional_fields()))
def test_a_null_is_a_field_left_out(path: str, number: int, name: str) -> None:
    kind = inspect.type_info(ROUTES[path][1].body[0].type)
    left_out, with_null = example(path), example(path)
    list(objects(kind, left_out))[number][1].pop(name, None)
    list(objects(kind, with_null))[number][1][name] = None
    if name == "data":  # of a tensor, which has it here or behind the JSON
        left_out = with_null = example(path)

    assert decoded(path, with_null) == decoded(path, left_out)


def inputs_of(pipeline: str) -> dict[str, Any]:
    """Return the required fields of a task of Hugging Face's."""
    texts: dict[str, Any] = {
        "zero-shot-classification": {"inputs": "a film", "candidate_labels": ["x", "y"]},
        "sentence-similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
        "question-answering": {"inputs": {"question": "a", "context": "b"}},
        "text-ranking": {"inputs": {"query": "a", "texts": ["b"]}},
    }
    given: dict[str, Any] = texts.get(pipeline, {"inputs": "a film"})
    return given


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_null_in_parameters_is_a_parameter_left_out(pipeline: str) -> None:
    route, _ = ROUTES["/models/{model:path}/pipeline/{pipeline}"]
    fields = msgspec.structs.fields(PIPELINES[pipeline][1])
    given = inputs_of(pipeline)

    def read(body: dict[str, Any]) -> RequestBody:
        parameters = {"model": "minilm", "pipeline": pipeline}
        raw = msgspec.json.encode(body)
        return route.decode(BodySource(raw, parameters, (), _DOCUMENT, _MODELS, None))

    for field in fields:
        if not field.required:
            assert read(given | {"parameters": {field.name: None}}) == read(given)


@pytest.mark.parametrize("path", ROUTES)
def test_a_byte_order_mark_is_passed_over(path: str) -> None:
    assert decoded(path, example(path), _MARK) == decoded(path, example(path))


def refuses_unknown_fields(path: str) -> bool:
    kind = inspect.type_info(ROUTES[path][1].body[0].type)
    return not isinstance(kind, inspect.StructType) or kind.forbid_unknown_fields


@pytest.mark.parametrize("path", [path for path in ROUTES if refuses_unknown_fields(path)])
def test_a_misspelt_field_is_told_the_known_one(path: str) -> None:
    body = example(path)
    name = next(iter(body))
    wrong = body | {f"{name}z": None if name == "parameters" else 1}

    with pytest.raises(UnknownField) as refused:
        decoded(path, wrong)

    assert refused.value.known == name
