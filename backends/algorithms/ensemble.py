"""Combines the scores or votes of several models."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithms, ModelAlgorithms, Recipe, all_of
from sluicegate.backends.algorithms.labels import Label, Labeller, WindowScores, labellers, reorder
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import rounded
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import Function, Task

Combination = Literal["mean", "weighted", "vote"]


class Ensemble(Labeller):
    """Combines several classifiers (Dietterich 2000, "Ensemble Methods in Machine Learning").

    With `mean` and `weighted`, a label's score is the mean of its scores from all models, weighted
    by `weights`. With `vote`, each model votes for the label that it scores highest, and a label's
    score is its share of the votes, weighted by `weights`. Labels with equal votes are ordered by
    their mean scores.
    """

    def __init__(
        self, *, classifiers: Sequence[Labeller], combine: Combination, weights: Sequence[float]
    ) -> None:
        super().__init__(labels=classifiers[0].labels)
        self._classifiers = classifiers
        self._combine = combine
        self._weights = np.array([weight / sum(weights) for weight in weights], dtype=np.float32)
        self.version = 1 + sum(classifier.version for classifier in classifiers)

    @override
    async def rank(
        self,
        text: Text,
        ask: AlgorithmContext,
        *,
        top: int | None = None,
        function: Function | None = None,
    ) -> list[Label]:
        mean, counted = await self._count(text, ask, function)
        order = np.lexsort((-mean, -counted))[:top]
        written = rounded(counted)
        return [Label(label=self.labels[index], score=written[index]) for index in order]

    @override
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        return (await self._count(text, ask, function))[1]

    @override
    async def window_scores(
        self, text: str, ask: AlgorithmContext, windows: Windows
    ) -> WindowScores:
        """Return the scores of a text that each classifier reads in one window.

        Raises:
            ItemRefused: the text has several windows; their mean would hide what one of them has.
        """
        found = await all_of(one.window_scores(text, ask, windows) for one in self._classifiers)
        for one in found:
            if one.failure or len(one.scores) > 1:
                detail = "an ensemble cannot read a text of several windows; send it in parts"
                raise one.failure or ItemRefused("input_too_long", detail)
        _, scores = self._combined([one.scores[0] for one in found])
        return WindowScores(scores[None], found[0].find_places)

    async def _count(
        self, text: Text, ask: AlgorithmContext, function: Function | None
    ) -> tuple[FloatArray, FloatArray]:
        """Return each label's mean score, and its score in the result: mean score or votes."""
        if self._combine == "vote" and function is not None:
            detail = "this model counts votes, so it does not take a `function`; leave it out"
            raise ItemRefused("bad_function", detail)
        found = await all_of(
            classifier.scores(text, ask, function) for classifier in self._classifiers
        )
        return self._combined(found)

    def _combined(self, found: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return what `_count` returns, from the scores of each classifier."""
        lines = np.stack(
            [
                reorder(scores, classifier.labels, self.labels)
                for scores, classifier in zip(found, self._classifiers, strict=True)
            ]
        )
        mean = np.asarray(self._weights @ lines, dtype=np.float32)
        if self._combine != "vote":
            return mean, mean
        votes = np.zeros(len(self.labels), dtype=np.float32)
        np.add.at(votes, lines.argmax(axis=1), self._weights)
        return mean, votes


class EnsembleRecipe(Recipe, frozen=True):
    """Builds an ensemble; without `weights`, all classifiers count alike."""

    combine: Combination = "mean"
    weights: tuple[Annotated[float, msgspec.Meta(gt=0.0)], ...] = ()

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        classifiers = labellers(below)
        if self.combine == "weighted" and not self.weights:
            raise ValueError("needs `weights`, one for each model it uses")
        if self.combine == "mean" and self.weights:
            raise ValueError("uses `weights` only where `combine` is `weighted` or `vote`")
        weights = self.weights or (1.0,) * len(classifiers)
        if len(weights) != len(classifiers):
            count = len(classifiers)
            raise ValueError(f"has {len(weights)} `weights` for the {count} models it uses")
        ensemble = Ensemble(classifiers=classifiers, combine=self.combine, weights=weights)
        return {Task.CLASSIFY: ensemble}
