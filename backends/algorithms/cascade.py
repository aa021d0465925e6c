"""Classifies with a small model, and also with a large model if the small one is unsure."""

from typing_extensions import override

from backends.algorithms.classify import Labeller
from backends.algorithms.ensemble import reorder
from backends.pipelines.ask import AlgorithmContext
from backends.types import FloatArray, Text
from wire.protocol import Function


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
