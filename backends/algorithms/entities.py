"""Finds entities in a text with a token classifier, grouped like Hugging Face's pipeline."""

import itertools
import unicodedata
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import apply_function, written
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.types import FloatArray, TokenOffsets
from sluicegate.wire.protocol import Aggregation, EntitiesParameters, Function

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
        if parameters != EntitiesParameters(aggregation=parameters.aggregation):
            raise ItemRefused(
                "labels_not_supported",
                f"`{self._model}` finds entities of fixed types; leave out `labels` and their "
                "options, or name a model that finds entities of any type, such as GLiNER",
            )
        pieces, logits = await ask.tokens(self._model, item)
        aggregation = parameters.aggregation
        return await run_token_work(len(pieces), self._answer, item, pieces, logits, aggregation)

    def _answer(
        self, item: str, pieces: list[TokenOffsets], logits: FloatArray, aggregation: Aggregation
    ) -> dict[str, Any]:
        scores = apply_function(logits, self._function)
        found = find_entities(pieces, scores, self._labels, aggregation)
        if aggregation != "none":
            found = [_with_accents(entity, item) for entity in found]
        answer = [
            {
                "label": entity.label,
                "score": written(entity.score),
                "text": item[entity.start : entity.end],
                "start": entity.start,
                "end": entity.end,
            }
            for entity in without_overlaps(found)
        ]
        return {"entities": answer}


def without_overlaps(entities: list[TextEntity]) -> list[TextEntity]:
    """Return the entities without overlaps.

    If two entities overlap, the earlier one keeps the shared characters. Entities can overlap
    because a byte-level tokenizer may make two tokens from one character.
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
    """Return the entity, extended over the combining accents of its last letter.

    A tokenizer that strips accents ends a token before these accents.
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
    2. `simple`: neighbouring tokens of one type are one entity. The prefix `B-` begins a new
       entity.
    3. `first`, `average`, `max`: each word gets one label. The label comes from the word's first
       token (`first`), from the mean of its tokens (`average`), or from its most certain token
       (`max`). Then words are grouped as in `simple`.
    """
    real = [index for index, piece in enumerate(pieces) if not piece.special]
    if not real:
        return []
    tokens = [pieces[index] for index in real]
    joins_words = aggregation not in ("none", "simple")
    firsts = [
        place
        for place, token in enumerate(tokens)
        if not (joins_words and place and token.continues_word)
    ]
    lasts = [*(first - 1 for first in firsts[1:]), len(tokens) - 1]
    lines = _word_scores(scores[real], firsts, aggregation)
    best = lines.argmax(axis=1)
    columns = zip(best.tolist(), lines.max(axis=1).tolist(), firsts, lasts, strict=True)
    entities = [
        TextEntity(
            label=labels[label], score=score, start=tokens[first].start, end=tokens[last].end
        )
        for label, score, first, last in columns
    ]
    if aggregation != "none":
        entities = [_merge(group) for group in _group_entities(entities)]
    return [entity for entity in entities if entity.label != _OUTSIDE]


def _word_scores(lines: FloatArray, firsts: list[int], aggregation: Aggregation) -> FloatArray:
    """Return one line of scores for each word; `firsts` has the index of each word's first token.

    `lines` has one line for each token.
    """
    words = lines[firsts]
    if aggregation in ("average", "max"):
        for number, (first, end) in enumerate(itertools.pairwise([*firsts, len(lines)])):
            if end - first > 1:
                word = lines[first:end]
                is_mean = aggregation == "average"
                words[number] = word.mean(axis=0) if is_mean else word[word.max(axis=1).argmax()]
    return words


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
