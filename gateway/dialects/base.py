"""Holds functions that all dialects (APIs of other products) share.

They count tokens, check texts and describe operations.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from sluicegate.gateway.api.inference_operations import INFERENCE_ERRORS, INFERENCE_HEADERS
from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute
from sluicegate.gateway.api.native_routes import joined_outputs
from sluicegate.gateway.api.openapi_parts import Content, Json, Kind, Operation
from sluicegate.gateway.api.vectors import NumberType, in_form
from sluicegate.gateway.config.document import ModelConfig
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.types import Answer

_DEFAULT_ENTRY = ModelConfig()


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
