"""Holds what dialects (APIs of other products) share: their usual route, and checks of texts."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from sluicegate.gateway.api.inference_operations import INFERENCE_ERRORS, INFERENCE_HEADERS
from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.native_routes import joined_outputs
from sluicegate.gateway.api.openapi_parts import Content, Json, Kind, Operation
from sluicegate.gateway.api.vectors import NumberType, in_form
from sluicegate.gateway.config.document import ModelConfig
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.http.problem_details import PROBLEMS, ErrorFormat
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.protocol import Task

_DEFAULT_ENTRY = ModelConfig()
_DOCUMENT = ("document", "passage", "corpus")
# By the kinds of texts of Cohere, Jina and Voyage: the usual names of a model's prompt.
_PROMPTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("query", "search_query", "retrieval.query"), ("query",)),
        **dict.fromkeys(("document", "search_document", "retrieval.passage"), _DOCUMENT),
        "classification": ("classification",),
        **dict.fromkeys(("clustering", "separation"), ("clustering",)),
        "text-matching": ("text-matching", "sts"),
    }
)


class DialectBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a body that names the model, and writes the response to it."""

    model: str
    """The name of a model, as in `GET /v1/models`."""

    def items(self) -> list[Any]:
        """Return the texts. Their number is checked before the request is made."""
        raise NotImplementedError

    def resolved(self, source: BodySource) -> Self:
        """Return the body with the name of the model's prompt, instead of the kind of texts."""
        return self

    def request(self, model: str = "") -> InferenceRequest:
        """Return the equivalent request of a native route, so that both have the same cache key."""
        raise NotImplementedError

    def response(self, answer: Answer, request_id: RequestId) -> Any:
        """Return the response, which is encoded as JSON."""
        raise NotImplementedError


class BodyRoute(InferenceRoute):
    """Answers `POST` to a path with the response of its `DialectBody`."""

    def __init__(
        self, path: str, task: Task, body: type[DialectBody], *, errors: ErrorFormat = PROBLEMS
    ) -> None:
        self.path = path
        self.task = task
        self.errors = errors
        self.reads_models = task is Task.EMBED
        self._decode: BodyDecoder[DialectBody] = BodyDecoder(body)
        super().__init__()

    @override
    def decode(self, source: BodySource) -> DialectBody:
        return self._decode(source.raw).resolved(source)

    @override
    def encode(
        self, body: DialectBody, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        return Rendered(JSON, msgspec.json.encode(body.response(answer, request_id)))


def body_route(
    path: str,
    task: Task,
    body: type[DialectBody],
    *,
    dialect: str,
    summary: str,
    example: Json,
    answer: type[msgspec.Struct],
    answer_example: Json,
    errors: ErrorFormat = PROBLEMS,
) -> dict[InferenceRoute, Operation]:
    """Return a `BodyRoute` with its OpenAPI operation, for `Dialect.routes`."""
    route = BodyRoute(path, task, body, errors=errors)
    operation = dialect_operation(
        route,
        dialect=dialect,
        id=f"{dialect.replace('-', '_')}_{path.rpartition('/')[2]}",
        summary=summary,
        body=body,
        example=example,
        answer=answer,
        answer_example=answer_example,
    )
    return {route: operation}


def input_tokens(answer: Answer, *, every: int = 1) -> int:
    """Return the number of tokens of all texts, including cached ones.

    Each text has `every` items, of which the first is counted.
    """
    return sum([outcome.input_tokens for outcome in answer.outcomes[::every]])


def joined_results(answer: Answer, count: int, kind: NumberType, *, packed: bool) -> list[bytes]:
    """Return a JSON object for each text with its `count` outputs, as `POST /v1/embed` does."""
    outcomes = [
        replace(outcome, result=in_form(outcome.result, kind, packed=packed))
        for outcome in answer.outcomes
    ]
    return [outcome.result for outcome in joined_outputs(outcomes, count)]


def texts_only(values: Iterable[object], field: str) -> list[str]:
    """Return `values` after checking that they are strings.

    Raises:
        InvalidRequest: an element is a token id or a list of token ids.
    """
    texts = [value for value in values if isinstance(value, str)]
    if not isinstance(values, list) or len(texts) < len(values):
        raise tokens_refused(field)
    return texts


def takes_tokens(source: BodySource, model: str) -> bool:
    """Return whether the configuration lets `model` accept token ids instead of texts."""
    return source.document.models.get(model, _DEFAULT_ENTRY).token_ids


def prompt_for(source: BodySource, model: str, kind: str | None) -> str | None:
    """Return the name of the model's prompt for a kind of texts, in the words of a dialect.

    Return `None` if the model has no such prompt.
    """
    served = source.served(model)
    if kind is None or served is None:
        return None
    names = {name.lower(): name for name in served.info.prompts}
    return next((names[name] for name in _PROMPTS.get(kind, ()) if name in names), None)


def tokens_refused(field: str) -> InvalidRequest:
    """Return the error for token ids that are sent to a model that accepts only texts."""
    return InvalidRequest(
        f"`{field}` has token ids, which this model does not accept; send texts."
        " (In LangChain: `check_embedding_ctx_length=False`.)"
    )


def dialect_operation(
    route: InferenceRoute,
    *,
    dialect: str,
    id: str,  # noqa: A002 - the OpenAPI document's name
    summary: str,
    body: Any,
    example: Json,
    answer: Any,
    answer_example: Json,
    path_example: Mapping[str, str] = MappingProxyType({}),
) -> Operation:
    """Return the OpenAPI operation of a dialect's inference route.

    `path_example` maps each path parameter to its value in the example.
    """
    parameters = tuple(
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": f"The {name}.",
            "schema": {"type": "string", "minLength": 1},
            "example": path_example[name],
        }
        for name in route.names
    )
    return Operation(
        id=id,
        summary=summary,
        tag=dialect,
        kind=Kind.INFERENCE,
        errors=INFERENCE_ERRORS,
        error_format=route.errors,
        body=(Content(type=body, summary="With a demo model", example=example),),
        answers={
            200: (Content(type=answer, summary="The answer", example=answer_example),),
        },
        parameters=(*INFERENCE_HEADERS, *parameters),
    )
