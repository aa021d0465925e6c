"""Decodes stored results, so that dialects can write them in their own formats."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from sluicegate.gateway.api.answers import SCORE_DECIMALS
from sluicegate.gateway.types import Answer


class StoredLabel(msgspec.Struct, frozen=True):
    """A label of a stored result."""

    label: str
    score: float


class StoredEntity(msgspec.Struct, frozen=True):
    """An entity of a stored result."""

    label: str
    score: float
    text: str
    start: int
    end: int


class StoredChoice(msgspec.Struct, frozen=True):
    """A stored result of `choose`."""

    choice: int
    scores: list[float]


class _Labels(msgspec.Struct, frozen=True):
    labels: list[StoredLabel]


class _Entities(msgspec.Struct, frozen=True):
    entities: list[StoredEntity]


class _Embedding(msgspec.Struct, frozen=True):
    embedding: list[float]


class _Weights(msgspec.Struct, frozen=True):
    indices: list[int]
    values: list[float]


class _Sparse(msgspec.Struct, frozen=True):
    sparse: _Weights


class StoredTokens(NamedTuple):
    """Holds the tokens of a stored result. A special token has no offset in the text."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int] | None]


class _Columns(msgspec.Struct, frozen=True):
    ids: msgspec.Raw
    tokens: msgspec.Raw
    offsets: msgspec.Raw


class _Text(msgspec.Struct, frozen=True):
    text: str


class _Score(msgspec.Struct, frozen=True):
    score: float


_encode = msgspec.json.encode
_labels = msgspec.json.Decoder(_Labels).decode
_entities = msgspec.json.Decoder(_Entities).decode
_embedding = msgspec.json.Decoder(_Embedding).decode
_sparse = msgspec.json.Decoder(_Sparse).decode
_choice = msgspec.json.Decoder(StoredChoice).decode
_columns = msgspec.json.Decoder(_Columns).decode
_ids = msgspec.json.Decoder(list[int]).decode
_token_texts = msgspec.json.Decoder(list[str]).decode
_places = msgspec.json.Decoder(list[tuple[int, int] | None]).decode
_text = msgspec.json.Decoder(_Text).decode
_score = msgspec.json.Decoder(_Score).decode


def labels_in(result: bytes) -> list[StoredLabel]:
    """Return the labels of a `classify` or `zero-shot` result, from the highest score on."""
    return _labels(result).labels


def entities_in(result: bytes) -> list[StoredEntity]:
    """Return the entities of an `entities` result, in the order of the text."""
    return _entities(result).entities


def tokens_in(result: bytes) -> StoredTokens:
    """Return the tokens of a `tokenize` result.

    Ids, tokens and offsets are decoded in three calls. One call for all of them would hold the GIL
    for long.
    """
    columns = _columns(result)
    return StoredTokens(_ids(columns.ids), _token_texts(columns.tokens), _places(columns.offsets))


def text_in(result: bytes) -> str:
    """Return the text of a `detokenize` result."""
    return _text(result).text


def vector_in(result: bytes) -> list[float]:
    """Return the numbers of an `embed` result."""
    return _embedding(result).embedding


def weights_in(result: bytes) -> list[tuple[int, float]]:
    """Return the numbers of tokens in a sparse vector, and their weights."""
    found = _sparse(result).sparse
    return list(zip(found.indices, found.values, strict=True))


def choice_in(result: bytes) -> StoredChoice:
    """Return the choice of a `choose` result, and the scores of all options."""
    return _choice(result)


def score_in(result: bytes) -> float:
    """Return the score in the `rerank` result of a document."""
    return _score(result).score


def encoded_list(values: Iterable[Any]) -> bytes:
    """Return `values` as a JSON list. Each value is encoded separately.

    Encoding a large response in one call would hold the GIL for long, and would thereby block the
    event loop.
    """
    return b"[%b]" % b",".join(map(_encode, values))


def ranking(answer: Answer, most: int | None = None) -> list[tuple[int, float]]:
    """Return the index and the score of each document in a `rerank` response, the best first.

    If `most` is given, only this many documents are returned.
    """
    scored = sorted(
        (-_score(outcome.result).score, index) for index, outcome in enumerate(answer.outcomes)
    )
    return [(index, round(-negative, SCORE_DECIMALS)) for negative, index in scored[:most]]
