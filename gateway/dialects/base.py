"""Holds what the dialects share: tokens of an answer, and the parts of their OpenAPI operations."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from gateway.api.inference_operations import INFERENCE_ERRORS, INFERENCE_HEADERS
from gateway.api.inference_route import BodySource, InferenceRoute
from gateway.api.openapi_parts import Content, Json, Kind, Operation
from gateway.config.document import ModelConfig
from gateway.errors import InvalidRequest
from gateway.types import Answer

_DEFAULT_ENTRY = ModelConfig()


def input_tokens(answer: Answer) -> int:
    """Return the tokens of all items of an answer, whether they were computed or cached."""
    return sum([outcome.input_tokens for outcome in answer.outcomes])


def texts_only(values: Iterable[object], field: str) -> list[str]:
    """Return `values`, of which each must be a text.

    Raises:
        InvalidRequest: one is a token, or a list of them.
    """
    texts = [value for value in values if isinstance(value, str)]
    if not isinstance(values, list) or len(texts) < len(values):
        raise tokens_refused(field)
    return texts


def takes_tokens(source: BodySource, model: str) -> bool:
    """Tell whether a model is configured to take ids of its own vocabulary as texts."""
    return source.document.models.get(model, _DEFAULT_ENTRY).token_ids


def tokens_refused(field: str) -> InvalidRequest:
    """Return the error of a body with tokens for a model that is not configured to take them."""
    return InvalidRequest(
        f"`{field}` has tokens; send texts, which the model's own tokenizer reads."
        " (In LangChain: `check_embedding_ctx_length=False`.)"
    )


def dialect_operation(
    route: InferenceRoute,
    *,
    dialect: str,
    id: str,  # noqa: A002 - as the document calls it
    summary: str,
    body: Any,
    example: Json,
    answer: Any,
    answer_example: Json,
    path_example: Mapping[str, str] = MappingProxyType({}),
) -> Operation:
    """Return what the OpenAPI document says of a dialect's inference route.

    `path_example` has the parameters of its path, as the example has them.
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
