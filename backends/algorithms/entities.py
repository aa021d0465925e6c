"""Finds entities in a text with a token classifier, grouped like Hugging Face's pipeline."""

import unicodedata
from typing import Any

import msgspec
from typing_extensions import override

from backends.algorithms.base import Algorithm
from backends.pipelines.ask import AlgorithmContext
from backends.pipelines.scores import apply_function, written
from backends.protocol import Aggregation, EntitiesParameters, Function
from backends.types import FloatArray, TokenOffsets

_OUTSIDE = "O"


class TextEntity(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a labelled span of a text; `start` and `end` count characters."""

    label: str
    score: float
    start: int
    end: int


class Entities(Algorithm):
    """Finds entities. Positions count characters of the text as the caller sent it."""

    version = 3

    def __init__(self, *, model: str, labels: list[str], function: Function) -> None:
        self._model = model
        self._labels = labels
        self._function = function

    @override
    async def run(self, item: str, parameters: EntitiesParameters, ask: AlgorithmContext) -> Any:
        pieces, logits = await ask.tokens(self._model, item)
        scores = apply_function(logits, self._function)
        found = find_entities(pieces, scores, self._labels, parameters.aggregation)
        if parameters.aggregation != "none":
            found = [_with_accents(entity, item) for entity in found]
        return {
            "entities": [
                {
                    "label": entity.label,
                    "score": written(entity.score),
                    "text": item[entity.start : entity.end],
                    "start": entity.start,
                    "end": entity.end,
                }
                for entity in without_overlaps(found)
            ]
        }


def without_overlaps(entities: list[TextEntity]) -> list[TextEntity]:
    """Return the entities without overlaps; the earlier of two entities keeps the overlap.

    Entities overlap if a byte-level tokenizer makes two tokens of one character.
    """
    apart: list[TextEntity] = []
    reached = 0
    for entity in entities:
        start = max(entity.start, reached)
        is_hidden = start > entity.end or entity.start < start == entity.end
        if not is_hidden:
            apart.append(msgspec.structs.replace(entity, start=start))
            reached = entity.end
    return apart


def _with_accents(entity: TextEntity, text: str) -> TextEntity:
    """Return the entity with its end moved behind the accents of its last letter.

    A tokenizer that strips accents ends a token before combining accents.
    """
    end = entity.end
    while end < len(text) and unicodedata.combining(text[end]):
        end += 1
    return entity if end == entity.end else msgspec.structs.replace(entity, end=end)


def find_entities(
    pieces: list[TokenOffsets], scores: FloatArray, labels: list[str], aggregation: Aggregation
) -> list[TextEntity]:
    """Return the entities of a text, without entities of the label `O`.

    `scores` has one row for each token. `aggregation` selects how tokens become entities:

    1. `none`: every token is an entity, and its label keeps the prefix `B-` or `I-`.
    2. `simple`: neighbouring tokens of one type are one entity. The prefix `B-` begins a new one.
    3. `first`, `average`, `max`: each word gets one label. It comes from the word's first token,
       from the mean of its tokens, or from its most certain token. Then words are grouped as in
       `simple`.
    """
    real = [index for index, piece in enumerate(pieces) if not piece.special]
    if aggregation in ("none", "simple"):
        words = [[index] for index in real]
    else:
        words = _group_words(real, pieces)
    entities = [_label(word, pieces, scores, labels, aggregation) for word in words]
    if aggregation != "none":
        entities = [_merge(group) for group in _group_entities(entities)]
    return [entity for entity in entities if entity.label != _OUTSIDE]


def _group_words(real: list[int], pieces: list[TokenOffsets]) -> list[list[int]]:
    words: list[list[int]] = []
    for index in real:
        if words and pieces[index].continues_word:
            words[-1].append(index)
        else:
            words.append([index])
    return words


def _label(
    word: list[int],
    pieces: list[TokenOffsets],
    scores: FloatArray,
    labels: list[str],
    aggregation: Aggregation,
) -> TextEntity:
    """Return a word as an entity, with one label for all its tokens."""
    lines = scores[word]
    if aggregation == "average":
        line = lines.mean(axis=0)
    elif aggregation == "max":
        line = lines[int(lines.max(axis=1).argmax())]
    else:
        line = lines[0]
    best = int(line.argmax())
    return TextEntity(
        label=labels[best],
        score=float(line[best]),
        start=pieces[word[0]].start,
        end=pieces[word[-1]].end,
    )


def _group_entities(entities: list[TextEntity]) -> list[list[TextEntity]]:
    groups: list[list[TextEntity]] = []
    for entity in entities:
        begins, kind = _split_tag(entity.label)
        if groups and not begins and kind == _split_tag(groups[-1][-1].label)[1]:
            groups[-1].append(entity)
        else:
            groups.append([entity])
    return groups


def _split_tag(label: str) -> tuple[bool, str]:
    """Return whether a label has the prefix `B-`, and the label without its prefix."""
    if label.startswith(("B-", "I-")):
        return label.startswith("B-"), label[2:]
    return False, label


def _merge(group: list[TextEntity]) -> TextEntity:
    return TextEntity(
        label=group[0].label.split("-", 1)[-1],
        score=sum(entity.score for entity in group) / len(group),
        start=group[0].start,
        end=group[-1].end,
    )
