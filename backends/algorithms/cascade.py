"""Classifies with a small model, and also with a large model if the small one is unsure."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithms, ModelAlgorithms, Recipe, all_of
from sluicegate.backends.algorithms.labels import Labeller, WindowScores, labellers, reorder
from sluicegate.backends.errors import BackendError
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import Function, Task

Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Band = tuple[Probability, Probability]
"""The small model is unsure if a score is at least the first value, and less than the second."""


class Cascade(Labeller):
    """Calls the large model only if the small model is unsure.

    It is unsure if its confidence is below `threshold` or, with `unsure`, if a label's score is in
    the label's band. See Chow 1970 for rejection by confidence, and Viola and Jones 2001 for
    cascades. The scores are always those of the small model's own score function, even if the
    caller requests another function.
    """

    def __init__(
        self,
        *,
        small: Labeller,
        large: Labeller,
        threshold: float = 0.0,
        unsure: Mapping[str, Band] | None = None,
    ) -> None:
        super().__init__(labels=large.labels)
        self.small = small
        self.large = large
        self._threshold = threshold
        self._bands = {small.labels.index(label): band for label, band in (unsure or {}).items()}
        self.version = 1 + small.version + large.version

    @override
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        scores = await self.small.scores(text, ask)
        if not self._is_sure(scores):
            return await self.large.scores(text, ask, function)
        if function is not None:
            # This does not run the model again, because the row is in the row cache by now.
            scores = await self.small.scores(text, ask, function)
        return reorder(scores, self.small.labels, self.labels)

    @override
    async def window_scores(
        self, text: str, ask: AlgorithmContext, windows: Windows
    ) -> WindowScores:
        found = await self.small.window_scores(text, ask, windows)
        scores = reorder(found.scores, self.small.labels, self.labels)
        unsure = [number for number, line in enumerate(found.scores) if not self._is_sure(line)]
        if not unsure:
            return found._replace(scores=scores)
        spans = await found.places(text)
        failures = [found.failure] if found.failure else []

        async def ask_large(span: Span) -> tuple[FloatArray, list[Span]]:
            start, end = span
            part = text[start:end]
            # The large model may have other tokens, and read the window in several windows.
            try:
                large = await self.large.window_scores(part, ask, windows)
                places = await large.places(part)
            except BackendError as error:
                failures.append(error)  # The scores of the other windows count.
                return scores[:0], []
            if large.failure:
                failures.append(large.failure)
            return large.scores, [(start + first, start + last) for first, last in places]

        answers = [(scores[[number]], [span]) for number, span in enumerate(spans)]
        asked = await all_of(ask_large(spans[number]) for number in unsure)
        for number, answer in zip(unsure, asked, strict=True):
            answers[number] = answer

        async def places() -> list[Span]:
            return [span for _, some in answers for span in some]

        lines = np.concatenate([lines for lines, _ in answers])
        return WindowScores(lines, places, failures[0] if failures else None)

    def _is_sure(self, scores: FloatArray) -> bool:
        """Whether the small model is sure of the scores of one text."""
        if self._bands:
            return not any(low <= scores[at] < high for at, (low, high) in self._bands.items())
        return self.small.confidence(scores) >= self._threshold

    @override
    def confidence(self, scores: FloatArray) -> float:
        return self.large.confidence(scores)


class CascadeRecipe(Recipe, frozen=True):
    """Builds a cascade of two classifiers, with either `threshold` or `unsure`."""

    threshold: Probability | None = None
    unsure: dict[str, Band] = msgspec.field(default_factory=dict)

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        found = labellers(below)
        if len(found) != 2:  # noqa: PLR2004 - a small and a large one
            raise ValueError("needs `uses` of two models: the small one, then the large one")
        small, large = found
        if (self.threshold is None) is not bool(self.unsure):
            raise ValueError("needs either `threshold` or `unsure` in its `options`")
        for label, (low, high) in self.unsure.items():
            if label not in small.labels:
                raise ValueError(f"has no label `{label}`, which `unsure` names")
            if low > high:
                raise ValueError(f"needs a band of `{label}` whose first value is the lower one")
        cascade = Cascade(
            small=small, large=large, threshold=self.threshold or 0.0, unsure=self.unsure
        )
        return {Task.CLASSIFY: cascade}
