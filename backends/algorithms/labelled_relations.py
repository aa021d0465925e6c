"""Finds relations of types that the caller names, as GLiNER2 does."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sluicegate.backends.algorithms.questions import check_labels
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import written
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.pipelines.windows import Span
from sluicegate.backends.pipelines.word_rows import WordFormat, WordOutputs
from sluicegate.backends.types import OutputKind

# All heads and tails of a text may have so many characters.
_MOST_CHARACTERS = 2**20


class Relation(NamedTuple):
    """Holds a relation: the place of its type, its head and tail in characters, and their scores.

    The scores are those of the head and of the tail.
    """

    label: int
    head: Span
    tail: Span
    scores: tuple[float, float]


class LabelledRelations:
    """Finds relations, each with a head and a tail.

    The model says how many relations of a type a row has, and scores all spans for the head and the
    tail of each. The best spans are the relation. A long text is read in windows.
    """

    def __init__(self, *, model: str, form: WordFormat, max_labels: int, max_count: int) -> None:
        self._model = model
        self._form = form
        self._max_labels = max_labels
        self._max_count = max_count

    async def find(
        self,
        item: str,
        labels: list[str],
        ask: AlgorithmContext,
        *,
        threshold: float,
        descriptions: Mapping[str, str],
    ) -> list[dict[str, Any]]:
        """Return the relations whose head and tail have a score above `threshold`.

        They are in the order of `labels`. An equal relation is returned once, with the scores of
        the one that has the highest score.

        Raises:
            ItemRefused: the labels are refused, or the text is empty or too long.
        """
        check_labels(labels, self._model, self._max_labels, field="relations")
        texts = [
            f"{each}: {descriptions[each]}" if each in descriptions else each for each in labels
        ]
        found: dict[tuple[int, Span, Span], Relation] = {}
        outputs = ask.word_outputs(self._model, item, texts, self._form, kind=OutputKind.JOINED)
        async for windows in outputs:
            relations = await run_token_work(
                len(item), self._read, windows, len(labels), threshold, len(item)
            )
            for relation in relations:
                known = found.setdefault(relation[:3], relation)
                if max(relation.scores) > max(known.scores):
                    found[relation[:3]] = relation
        # Words may be long, and many relations may repeat them.
        if sum(end - start for key in found for start, end in key[1:]) > _MOST_CHARACTERS:
            raise ItemRefused(
                "bad_parameter",
                f"the heads and tails have more than {_MOST_CHARACTERS:,} characters; send a "
                "higher `threshold`, or fewer `relations`",
            )
        return [
            {
                "label": labels[relation.label],
                "head": _end(item, relation.head, relation.scores[0]),
                "tail": _end(item, relation.tail, relation.scores[1]),
            }
            for relation in sorted(found.values(), key=lambda each: each.label)
        ]

    def _read(
        self, found: WordOutputs, labels: int, threshold: float, length: int
    ) -> list[Relation]:
        """Return the relations of some windows; `length` is that of the text."""
        relations: list[Relation] = []
        for (start, _), output in zip(found.windows, found.outputs, strict=True):
            scores, places = output.reshape(2, self._max_count, self._max_labels, 2)
            # The last axis of scores and places is head and tail.
            above = (scores[:, :labels] > np.float32(threshold)).all(axis=2)
            for label, step in np.argwhere(above.T).tolist():
                head, tail = (
                    self._characters(found.words, start, int(place), length)
                    for place in places[step, label]
                )
                # The last word of GLiNER2 may be a full stop that the text does not have.
                if head[0] < head[1] and tail[0] < tail[1]:
                    own = scores[step, label].tolist()
                    relations.append(Relation(label, head, tail, (own[0], own[1])))
        return relations

    def _characters(self, words: list[Span], start: int, place: int, length: int) -> Span:
        """Return the characters of a span; `start` is the first word of its window."""
        first, more = divmod(place, self._form.max_width)
        return words[start + first][0], min(words[start + first + more][1], length)


def _end(item: str, span: Span, score: float) -> dict[str, Any]:
    start, end = span
    return {"score": written(score), "text": item[start:end], "start": start, "end": end}
