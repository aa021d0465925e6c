"""Finds entities and classifies by labels that the caller names, as GLiNER and GLiNER2 do."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm, all_of
from sluicegate.backends.algorithms.labelled_relations import LabelledRelations
from sluicegate.backends.algorithms.labels import Label, rank
from sluicegate.backends.algorithms.questions import ZeroShotTask, check_labels
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import sigmoid, softmax, written
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.pipelines.windows import Span
from sluicegate.backends.pipelines.word_rows import WordFormat, WordOutputs, describe
from sluicegate.wire.protocol import MAX_ENTITIES, EntitiesParameters, ZeroShotParameters

_THRESHOLD = 0.5


class WordSpan(NamedTuple):
    """Holds a span from its first to its last word, the place of its label, and its score."""

    first: int
    last: int
    label: int
    score: float


class LabelledSpans(Algorithm):
    """Scores spans of words for each label, and keeps the best ones.

    `relations` finds relations, if the model knows some. They have rows of their own, so entities
    do not depend on them.
    """

    def __init__(
        self,
        *,
        model: str,
        form: WordFormat,
        max_labels: int,
        relations: LabelledRelations | None = None,
    ) -> None:
        self._model = model
        self._form = form
        self._max_labels = max_labels
        self._relations = relations

    @override
    async def run(self, item: str, parameters: EntitiesParameters, ask: AlgorithmContext) -> Any:
        self._check_descriptions(parameters)
        asked = parameters.relations
        if asked is UNSET:
            return {"entities": await self._find(item, parameters, ask)}
        if self._relations is None:
            raise ItemRefused(
                "relations_not_supported",
                f"`{self._model}` finds no relations; leave out `relations`, or name a GLiNER2 "
                "model that was imported by this version",
            )
        related = self._relations.find(
            item, asked, ask, threshold=_threshold(parameters), descriptions=_described(parameters)
        )
        if parameters.labels is UNSET:
            return {"entities": [], "relations": await related}
        entities, relations = await all_of([self._find(item, parameters, ask), related])
        return {"entities": entities, "relations": relations}

    async def _find(
        self, item: str, parameters: EntitiesParameters, ask: AlgorithmContext
    ) -> list[dict[str, Any]]:
        labels = self._labels(parameters)
        words: list[Span] = []
        candidates: list[WordSpan] = []
        schema = describe(self._form.schema, labels, _described(parameters))
        form = msgspec.structs.replace(self._form, schema=schema)
        async for found in ask.word_outputs(self._model, item, labels, form):
            words = found.words
            more = MAX_ENTITIES - len(candidates)
            candidates += await run_token_work(
                len(item), self._above, found, len(labels), parameters, more
            )
            del found  # Its outputs are large, and the next ones are computed now.
        return await run_token_work(
            len(candidates), self._answer, item, labels, words, candidates, parameters
        )

    def _answer(
        self,
        item: str,
        labels: list[str],
        words: list[Span],
        candidates: list[WordSpan],
        parameters: EntitiesParameters,
    ) -> list[dict[str, Any]]:
        flat, several = parameters.flat is not False, parameters.multi_label is True
        if self._form.schema and parameters.multi_label is not False:
            chosen = choose_by_label(candidates, len(labels), flat=flat)
        else:
            chosen = choose_spans(candidates, flat=flat, multi_label=several)
        found: dict[tuple[int, int, int], float] = {}
        for span in chosen:
            start = words[span.first][0]
            # The last word of GLiNER2 may be a full stop that the text does not have.
            end = min(words[span.last][1], len(item))
            if start < end:
                place = (span.label, start, end)
                found[place] = max(span.score, found.get(place, 0.0))
        return [
            {
                "label": labels[label],
                "score": written(score),
                "text": item[start:end],
                "start": start,
                "end": end,
            }
            for (label, start, end), score in found.items()
        ]

    def _check_descriptions(self, parameters: EntitiesParameters) -> None:
        described = _described(parameters)
        if described and not self._form.schema:
            raise ItemRefused(
                "bad_parameter", f"`{self._model}` reads no `descriptions`; leave them out"
            )
        names = {*(parameters.labels or ()), *(parameters.relations or ())}
        unknown = next((name for name in described if name not in names), None)
        if unknown is not None:
            raise ItemRefused(
                "bad_parameter",
                f"`descriptions` has `{unknown}`, which is neither in `labels` nor in `relations`",
            )

    def _labels(self, parameters: EntitiesParameters) -> list[str]:
        labels = parameters.labels
        if labels is UNSET:
            raise ItemRefused(
                "no_labels", f"`{self._model}` finds entities of any type; send `labels`"
            )
        check_labels(labels, self._model, self._max_labels)
        return labels

    def _above(
        self, found: WordOutputs, labels: int, parameters: EntitiesParameters, most: int
    ) -> list[WordSpan]:
        """Return the spans with a score above the threshold, in the order of their words."""
        threshold = np.float32(_threshold(parameters))
        spans: list[WordSpan] = []
        columns = zip(found.windows, found.owned, found.outputs, strict=True)
        for (start, end), (begin, upto), output in columns:
            lines = output[begin - start : upto - start].reshape(
                upto - begin, self._form.max_width, -1
            )
            scores = sigmoid(lines[:, :, :labels])
            firsts, lengths, places = np.nonzero(scores > threshold)
            lasts = firsts + lengths + begin
            inside = lasts < end
            if len(spans) + np.count_nonzero(inside) > most:
                raise ItemRefused(
                    "bad_parameter",
                    f"more than {MAX_ENTITIES:,} spans have a score above `threshold`; send a "
                    "higher one",
                )
            found_columns = (firsts + begin, lasts, places, scores[firsts, lengths, places])
            rows = zip(*(column[inside].tolist() for column in found_columns), strict=True)
            spans += [WordSpan(*row) for row in rows]
        return spans


def _threshold(parameters: EntitiesParameters) -> float:
    return _THRESHOLD if parameters.threshold is UNSET else parameters.threshold


def _described(parameters: EntitiesParameters) -> dict[str, str]:
    return parameters.descriptions or {}


def choose_spans(
    candidates: Sequence[WordSpan], *, flat: bool, multi_label: bool
) -> list[WordSpan]:
    """Return spans that do not exclude each other, in the order of their first words.

    The span with the highest score is chosen first. With `flat`, spans with a common word exclude
    each other. Otherwise, they exclude each other only if each has a word that the other one lacks.
    With `multi_label`, the same words may have several labels.
    """
    chosen: list[WordSpan] = []
    # For each first word, bit `n` says that a span of `n + 1` words is chosen.
    lengths: dict[int, int] = {}
    longest = max((span.last - span.first for span in candidates), default=0)
    for span in sorted(candidates, key=lambda span: -span.score):
        bit = 1 << (span.last - span.first)
        own = lengths.get(span.first, 0)
        is_same = bool(own & bit)
        if multi_label if is_same else not _is_excluded(span, lengths, longest, flat=flat):
            chosen.append(span)
            lengths[span.first] = own | bit
    return sorted(chosen, key=lambda span: span.first)


def _is_excluded(span: WordSpan, lengths: dict[int, int], longest: int, *, flat: bool) -> bool:
    """Return whether one of the chosen spans excludes another span."""
    first, last = span.first, span.last
    for start in range(first - longest, last + 1):
        found = lengths.get(start)
        if not found:
            continue
        if start < first:
            # Of the spans that reach the span, those that end before its last word.
            found >>= first - start
            if not flat:
                found &= (1 << (last - first)) - 1
        elif not flat:
            found = found >> (last - start + 1) if start > first else 0
        if found:
            return True
    return False


def choose_by_label(candidates: Sequence[WordSpan], labels: int, *, flat: bool) -> list[WordSpan]:
    """Return spans as `choose_spans` does, as if each label were the only one."""
    apart: list[list[WordSpan]] = [[] for _ in range(labels)]
    for span in candidates:
        apart[span.label].append(span)
    chosen = [choose_spans(spans, flat=flat, multi_label=False) for spans in apart]
    return sorted(itertools.chain(*chosen), key=lambda span: (span.first, span.last, span.label))


class LabelledTexts(ZeroShotTask):
    """Scores the labels for a whole text, which must fit into a row; reads no hypotheses."""

    def __init__(self, *, model: str, form: WordFormat, max_labels: int) -> None:
        self._model = model
        self._form = form
        self._max_labels = max_labels

    @override
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        check_labels(parameters.labels, self._model, self._max_labels)
        logits = await ask.label_scores(self._model, text, parameters.labels, self._form)
        return rank(parameters.labels, (sigmoid if parameters.multi_label else softmax)(logits))
