"""Holds functions that all dialects (APIs of other products) share.

They count tokens, check texts and describe operations.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sluicegate.gateway.api.inference_operations import INFERENCE_ERRORS, INFERENCE_HEADERS
from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute
from sluicegate.gateway.api.openapi_parts import Content, Json, Kind, Operation
from sluicegate.gateway.config.document import ModelConfig
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.types import Answer

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


def input_tokens(answer: Answer) -> int:
    """Return the number of tokens of all items, including cached items."""
    return sum([outcome.input_tokens for outcome in answer.outcomes])


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
