"""The bodies of answers, as types for the OpenAPI document. Results travel as stored bytes."""

from typing import Any

import msgspec

from backends.protocol import Task
from gateway.types import Usage


class LabelScore(msgspec.Struct, frozen=True, kw_only=True):
    """A label and how sure the model is of it."""

    label: str
    score: float


class LabelsResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Labels, best first."""

    labels: list[LabelScore]
    truncated: bool = False
    """The model read a part of the text only."""


class ChoiceResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The index of the chosen option, and each option's score."""

    choice: int
    scores: list[float]
    truncated: bool = False
    """The model read a part of the text only."""


class EmbeddingResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A vector."""

    embedding: list[float]
    truncated: bool = False
    """The model read a part of the text only."""


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document's place in the request, its score, and its text when asked for."""

    index: int
    score: float
    document: str | None = None
    truncated: bool = False
    """The model read a part of the text only."""


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """A named entity: `start` and `end` are character offsets into the text."""

    label: str
    score: float
    text: str
    start: int
    end: int


class EntitiesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The entities of a text, in order."""

    entities: list[Entity]


class ItemError(msgspec.Struct, frozen=True, kw_only=True):
    """Why an item has no answer (with `"on_error": "continue"`)."""

    code: str
    detail: str


class FailedResult(msgspec.Struct, frozen=True, kw_only=True):
    """An item that has no answer."""

    error: ItemError


class InferenceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: the model and revision that gave it, a result per item, what it used."""

    model: str
    revision: str
    results: list[Any]
    usage: Usage


RESULTS: dict[Task, Any] = {
    Task.CLASSIFY: LabelsResult,
    Task.ZERO_SHOT: LabelsResult,
    Task.CHOOSE: ChoiceResult,
    Task.EMBED: EmbeddingResult,
    Task.RERANK: RankedDocument,
    Task.ENTITIES: EntitiesResult,
    Task.INFER: Any,
}
