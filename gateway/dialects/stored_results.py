"""Reads stored results, which dialects write in other words."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from gateway.api.answers import SCORE_DECIMALS
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


class StoredChoice(msgspec.Struct, frozen=True):
    """Is a stored result of `choose`."""

    choice: int
    scores: list[float]


class _Labels(msgspec.Struct, frozen=True):
    labels: list[StoredLabel]


class _Entities(msgspec.Struct, frozen=True):
    entities: list[StoredEntity]


class _Embedding(msgspec.Struct, frozen=True):
    embedding: list[float]


class StoredTokens(NamedTuple):
    """Holds the tokens of a stored result; one without a place in the text is special."""

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
_choice = msgspec.json.Decoder(StoredChoice).decode
_columns = msgspec.json.Decoder(_Columns).decode
_ids = msgspec.json.Decoder(list[int]).decode
_token_texts = msgspec.json.Decoder(list[str]).decode
_places = msgspec.json.Decoder(list[tuple[int, int] | None]).decode
_text = msgspec.json.Decoder(_Text).decode
_score = msgspec.json.Decoder(_Score).decode


def labels_in(result: bytes) -> list[StoredLabel]:
    """Return the labels of a result of `classify` or `zero-shot`, best first."""
    return _labels(result).labels


def entities_in(result: bytes) -> list[StoredEntity]:
    """Return the entities of a result of `entities`, in the order of the text."""
    return _entities(result).entities


def tokens_in(result: bytes) -> StoredTokens:
    """Return the tokens of a result of `tokenize`.

    Each column is decoded alone: many tokens in one call would hold the GIL for long.
    """
    columns = _columns(result)
    return StoredTokens(_ids(columns.ids), _token_texts(columns.tokens), _places(columns.offsets))


def text_in(result: bytes) -> str:
    """Return the text of a result of `detokenize`."""
    return _text(result).text


def vector_in(result: bytes) -> list[float]:
    """Return the numbers of a result of `embed`."""
    return _embedding(result).embedding


def choice_in(result: bytes) -> StoredChoice:
    """Return the choice of a result of `choose`, and the scores of all options."""
    return _choice(result)


def score_in(result: bytes) -> float:
    """Return the score of a document's result of `rerank`."""
    return _score(result).score


def encoded_list(values: Iterable[Any]) -> bytes:
    """Return values as a JSON list; each is encoded alone, and need not be kept.

    Encoding a large answer in one call would hold the GIL, and so the event loop.
    """
    return b"[%b]" % b",".join(map(_encode, values))


def ranking(answer: Answer, most: int | None = None) -> list[tuple[int, float]]:
    """Return the places and scores of `most` documents of a `rerank` answer, the best ones."""
    scored = sorted(
        (-_score(outcome.result).score, index) for index, outcome in enumerate(answer.outcomes)
    )
    return [(index, round(-negative, SCORE_DECIMALS)) for negative, index in scored[:most]]
