"""Classifies with a small model, and also with a large model if the small one is unsure."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithms, ModelAlgorithms, Recipe
from sluicegate.backends.algorithms.labels import Labeller, labellers, reorder
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import Function, Task


class Cascade(Labeller):
    """Calls the large model only if the small model's confidence is below `threshold`.

    See Chow 1970 for rejection by confidence, and Viola and Jones 2001 for cascades. The confidence
    always comes from the small model's own score function, even if the caller requests another
    function.
    """

    def __init__(self, *, small: Labeller, large: Labeller, threshold: float) -> None:
        super().__init__(labels=large.labels)
        self._small = small
        self._large = large
        self._threshold = threshold
        self.version = 1 + small.version + large.version

    @override
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        scores = await self._small.scores(text, ask)
        if self._small.confidence(scores) < self._threshold:
            return await self._large.scores(text, ask, function)
        if function is not None:
            # This does not run the model again, because the row is in the row cache by now.
            scores = await self._small.scores(text, ask, function)
        return reorder(scores, self._small.labels, self.labels)

    @override
    def confidence(self, scores: FloatArray) -> float:
        return self._large.confidence(scores)


class CascadeRecipe(Recipe, frozen=True):
    """Builds a cascade of two classifiers."""

    threshold: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        found = labellers(below)
        if len(found) != 2:  # noqa: PLR2004 - a small and a large one
            raise ValueError("needs `uses` of two models: the small one, then the large one")
        small, large = found
        return {Task.CLASSIFY: Cascade(small=small, large=large, threshold=self.threshold)}
