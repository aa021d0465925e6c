"""Scores the caller's labels and choices by embeddings: no training, one row per text."""

from typing import Any

import numpy as np
from typing_extensions import override

from backends.algorithms.base import Algorithm
from backends.algorithms.classify import Label, rank
from backends.algorithms.label_cache import LabelVectorCache
from backends.algorithms.questions import SLOT, ZeroShotTask, check_choices, hypotheses
from backends.pipelines.ask import AlgorithmContext
from backends.pipelines.scores import best_first, normalize, rounded, sigmoid, softmax
from backends.protocol import ChooseItem, ChooseParameters, ZeroShotParameters
from backends.types import FloatArray

# Chosen on Banking77 by log loss; see the model's page.
TEMPERATURE = np.float32(0.05)
# Halfway between the cosines of right and of wrong labels.
MULTI_LABEL_CENTRE = np.float32(0.1)
# Some 1,500 sets of ten labels, or 50 of 256.
_MOST_LABEL_BYTES = 32 * 1024 * 1024


class ZeroShot(ZeroShotTask):
    """Scores the caller's labels by the nearness of their filled template to the text.

    The vector of the template without a label is projected out of every label's vector, so that
    labels differ by their own words alone. Rows of labels are cached like any other, and so are
    the directions of a whole set of labels.
    """

    def __init__(self, *, model: str) -> None:
        self._model = model
        self._label_cache = LabelVectorCache(most_bytes=_MOST_LABEL_BYTES)

    @override
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        labels, template = parameters.labels, parameters.hypothesis_template
        filled = hypotheses(parameters)
        null = [text for text in [template.replace(SLOT, "")] if text.strip()]
        label_set = (ask.scope, template, tuple(labels))
        directions = self._label_cache.get(label_set)
        if directions is None:
            rows = await ask(self._model, [text, *filled, *null])
            vectors = normalize(rows[1:])
            directions = vectors[: len(labels)]
            if null:
                directions = _without(directions, vectors[-1])
            if not ask.is_truncated:
                # Labels that were cut are to be seen as such again.
                self._label_cache.put(label_set, directions)
        else:
            ask.count_cached(len(filled) + len(null))
            rows = await ask(self._model, [text])
        cosines: FloatArray = directions @ normalize(rows[:1])[0]
        if parameters.multi_label:
            return rank(labels, sigmoid((cosines - MULTI_LABEL_CENTRE) / TEMPERATURE))
        return rank(labels, softmax(cosines / TEMPERATURE))


class Choose(Algorithm):
    """Picks the option nearest to a prompt."""

    def __init__(self, *, model: str) -> None:
        self._model = model

    @override
    async def run(
        self, item: ChooseItem, parameters: ChooseParameters, ask: AlgorithmContext
    ) -> Any:
        check_choices(item.choices)
        vectors = normalize(await ask(self._model, [item.prompt, *item.choices]))
        scores = softmax((vectors[1:] @ vectors[0]) / TEMPERATURE)
        return {"choice": best_first(scores, 1)[0], "scores": rounded(scores)}


def _without(vectors: FloatArray, null: FloatArray) -> FloatArray:
    """Return unit vectors at right angles to `null`; one parallel to it becomes zero."""
    rest = vectors - (vectors @ null)[:, None] * null
    rest[np.linalg.norm(rest, axis=-1) < 1e-6] = 0.0  # noqa: PLR2004 - nothing but rounding
    return normalize(rest)
