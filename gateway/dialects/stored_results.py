"""Reads stored results, which dialects write in other words."""

import msgspec

from gateway.types import Answer


class StoredLabel(msgspec.Struct, frozen=True):
    """Is a label of a stored result."""

    label: str
    score: float


class StoredEntity(msgspec.Struct, frozen=True):
    """Is an entity of a stored result."""

    label: str
    score: float
    text: str
    start: int
    end: int


class _Labels(msgspec.Struct, frozen=True):
    labels: list[StoredLabel]


class _Entities(msgspec.Struct, frozen=True):
    entities: list[StoredEntity]


class _Embedding(msgspec.Struct, frozen=True):
    embedding: list[float]


class _Score(msgspec.Struct, frozen=True):
    score: float


_labels = msgspec.json.Decoder(_Labels).decode
_entities = msgspec.json.Decoder(_Entities).decode
_embedding = msgspec.json.Decoder(_Embedding).decode
_score = msgspec.json.Decoder(_Score).decode


def labels_in(result: bytes) -> list[StoredLabel]:
    """Return the labels of a result of `classify` or `zero-shot`, best first."""
    return _labels(result).labels


def entities_in(result: bytes) -> list[StoredEntity]:
    """Return the entities of a result of `entities`, in the order of the text."""
    return _entities(result).entities


def vector_in(result: bytes) -> list[float]:
    """Return the numbers of a result of `embed`."""
    return _embedding(result).embedding


def ranking(answer: Answer, most: int | None = None) -> list[tuple[int, float]]:
    """Return the places and scores of `most` documents of a `rerank` answer, the best ones."""
    scored = sorted(
        (-_score(outcome.result).score, index) for index, outcome in enumerate(answer.outcomes)
    )
    return [(index, -negative) for negative, index in scored[:most]]
