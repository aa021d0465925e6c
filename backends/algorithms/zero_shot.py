"""Scores the caller's labels and choices by embeddings, without a trained head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithms,
    ModelAlgorithms,
    Recipe,
    WindowedAlgorithm,
)
from sluicegate.backends.algorithms.label_cache import LabelVectorCache
from sluicegate.backends.algorithms.labels import Label, rank
from sluicegate.backends.algorithms.questions import (
    SLOT,
    ZeroShotTask,
    check_choices,
    chosen,
    hypotheses,
)
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import normalize, sigmoid, softmax
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.types import FloatArray
from sluicegate.wire.protocol import ChooseItem, ChooseParameters, Task, ZeroShotParameters

# The temperature that minimizes the log loss on the data set Banking77; see the model's page.
TEMPERATURE = np.float32(0.05)
# Halfway between typical cosines of correct and of wrong labels.
MULTI_LABEL_CENTRE = np.float32(0.1)
# Room for about 1,500 sets of 10 labels, or 50 sets of 256 labels.
_MOST_LABEL_BYTES = 32 * 1024 * 1024


class ZeroShot(ZeroShotTask, WindowedAlgorithm):
    """Scores each of the caller's labels by the cosine between the label's hypothesis and the text.

    A hypothesis is the template with the label filled in. The vector of the template without a
    label is projected out of the vectors of all labels, so that only the words of the label affect
    the score. The vectors of whole label sets are cached.
    """

    def __init__(self, *, model: str) -> None:
        self.model = model
        self._label_cache = LabelVectorCache(max_bytes=_MOST_LABEL_BYTES)

    @override
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        directions, rows = await self._ask([text], parameters, ask)
        return rank(parameters.labels, _scores(rows, directions, parameters)[0])

    @override
    async def window_scores(
        self, item: str, parameters: ZeroShotParameters, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        directions, _ = await self._ask([], parameters, ask)
        rows = await ask.windows(self.model, item, windows)
        return _scores(rows, directions, parameters)

    async def _ask(
        self, texts: list[str], parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> tuple[FloatArray, FloatArray]:
        """Return the unit vectors of the labels, and the raw vectors of `texts`."""
        labels, template = parameters.labels, parameters.hypothesis_template
        filled = hypotheses(parameters)
        null = [text for text in [template.replace(SLOT, "")] if text.strip()]
        label_set = (ask.scope, template, tuple(labels))
        directions = self._label_cache.get(label_set)
        if directions is None:
            rows = await ask(self.model, [*texts, *filled, *null])
            vectors = normalize(rows[len(texts) :])
            directions = vectors[: len(labels)]
            if null:
                directions = _without(directions, vectors[-1])
            if not ask.is_truncated:
                # Do not cache truncated labels, because the next request must report the
                # truncation, too.
                self._label_cache.put(label_set, directions)
        else:
            ask.count_cached(len(filled) + len(null))
            rows = await ask(self.model, texts) if texts else directions
        return directions, rows[: len(texts)]


class Choose(WindowedAlgorithm):
    """Picks the choice whose embedding is nearest to the embedding of the prompt."""

    def __init__(self, *, model: str) -> None:
        self.model = model

    @override
    async def run(
        self, item: ChooseItem, parameters: ChooseParameters, ask: AlgorithmContext
    ) -> Any:
        check_choices(item.choices)
        vectors = normalize(await ask(self.model, [item.prompt, *item.choices]))
        return chosen(softmax((vectors[1:] @ vectors[0]) / TEMPERATURE))

    @override
    async def window_scores(
        self,
        item: ChooseItem,
        parameters: ChooseParameters,
        ask: AlgorithmContext,
        windows: Windows,
    ) -> FloatArray:
        check_choices(item.choices)
        choices = normalize(await ask(self.model, item.choices))
        prompts = normalize(await ask.windows(self.model, item.prompt, windows))
        return softmax((prompts @ choices.T) / TEMPERATURE)


def _scores(rows: FloatArray, directions: FloatArray, parameters: ZeroShotParameters) -> FloatArray:
    """Return the scores of all labels, in one row for each of `rows`."""
    cosines: FloatArray = (directions @ normalize(rows).T).T
    if parameters.multi_label:
        return sigmoid((cosines - MULTI_LABEL_CENTRE) / TEMPERATURE)
    return softmax(cosines / TEMPERATURE)


def _without(vectors: FloatArray, null: FloatArray) -> FloatArray:
    """Project `null` out of vectors and normalize them; vectors parallel to `null` become zero."""
    rest = vectors - (vectors @ null)[:, None] * null
    rest[np.linalg.norm(rest, axis=-1) < 1e-6] = 0.0  # noqa: PLR2004 - only rounding errors
    return normalize(rest)


class ZeroShotRecipe(Recipe, frozen=True):
    """Builds the algorithms for labels and choices over an encoder."""

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        if len(below) != 1 or below[0].info.algorithm != "embedding":
            raise ValueError("needs one `encoder`")
        name = below[0].info.name
        return {Task.ZERO_SHOT: ZeroShot(model=name), Task.CHOOSE: Choose(model=name)}
