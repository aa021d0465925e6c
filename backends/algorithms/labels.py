"""Defines algorithms that score fixed labels, and what they share: ranking, order of labels."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm, ModelAlgorithms
from sluicegate.backends.errors import BackendError, ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import best_first, written
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import ClassifyParameters, Function

FindPlaces = Callable[[], Awaitable[list[Span]]]
"""Returns the first character of each window, and the character after its last."""


class WindowScores(NamedTuple):
    """Holds the scores of a text's windows, an array of shape (windows, labels).

    With a `failure`, the windows without a score are left out.
    """

    scores: FloatArray
    find_places: FindPlaces
    failure: BackendError | None = None

    async def places(self, text: str) -> list[Span]:
        """Return the place of each window. A single window is the whole text."""
        if len(self.scores) == 1 and self.failure is None:
            return [(0, len(text))]
        return await self.find_places()


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a label and its score."""

    label: str
    score: float

    def as_json(self) -> dict[str, Any]:
        """Return the label as a JSON value."""
        return {"label": self.label, "score": self.score}


def rank(labels: list[str], scores: FloatArray, top: int | None = None) -> list[Label]:
    """Return labels with their scores, best first."""
    best = best_first(scores, top)
    return [Label(label=labels[place], score=written(score)) for place, score in best]


def check_top(parameters: ClassifyParameters) -> None:
    """Refuse a `top_k` below 1."""
    if parameters.top_k is not None and parameters.top_k < 1:
        raise ItemRefused("bad_top_k", "`top_k` must be at least 1; leave it out for all")


class Labeller(Algorithm):
    """Scores fixed labels for a text or a pair of texts; other algorithms can call it."""

    def __init__(self, *, labels: Sequence[str]) -> None:
        self.labels = list(labels)

    @abstractmethod
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        """Return a score for each of `labels`, in their order.

        `function` turns logits into scores; `None` stands for the model's own function.
        """

    async def window_scores(
        self, text: str, ask: AlgorithmContext, windows: Windows
    ) -> WindowScores:
        """Return the scores of each window. By default, the whole text is one window."""

        async def places() -> list[Span]:
            return [(0, len(text))]

        return WindowScores((await self.scores(text, ask))[None], places)

    def confidence(self, scores: FloatArray) -> float:
        """Return how certain the model is of its result, from 0 to 1: by default, its best score.

        `scores` are the scores that the model's own function gives.
        """
        return float(scores.max())

    @override
    async def run(self, item: Text, parameters: ClassifyParameters, ask: AlgorithmContext) -> Any:
        check_top(parameters)
        ranked = await self.rank(item, ask, top=parameters.top_k, function=parameters.function)
        return {"labels": [label.as_json() for label in ranked]}

    async def rank(
        self,
        text: Text,
        ask: AlgorithmContext,
        *,
        top: int | None = None,
        function: Function | None = None,
    ) -> list[Label]:
        """Return the labels of a text, best first; other algorithms call this method."""
        return rank(self.labels, await self.scores(text, ask, function), top)


def reorder(scores: FloatArray, have: Sequence[str], want: Sequence[str]) -> FloatArray:
    """Reorder scores from the order of the labels `have` to the order of `want`.

    The labels are the last axis.
    """
    if list(have) == list(want):
        return scores
    place = {label: index for index, label in enumerate(have)}
    return scores[..., [place[label] for label in want]]


def labellers(below: Sequence[ModelAlgorithms]) -> list[Labeller]:
    """Return the classifier of each model below.

    Raises:
        ValueError: a model does not classify, or labels differ.
    """
    found = [
        algorithm
        for served_model in below
        for algorithm in served_model.algorithms.values()
        if isinstance(algorithm, Labeller)
    ]
    if not found or len(found) != len(below):
        raise ValueError("needs `uses` of models that classify")
    if any(set(algorithm.labels) != set(found[0].labels) for algorithm in found):
        raise ValueError("needs `uses` of models with the same labels")
    return found
