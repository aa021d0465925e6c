"""Classifies a text with a trained classifier head."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from typing_extensions import override

from backends.algorithms.base import Algorithm, QueryAlgorithm
from backends.errors import ItemRefused
from backends.pipelines.ask import AlgorithmContext
from backends.pipelines.scores import best_first, best_labels, label_scores, written
from backends.types import FloatArray, Text
from wire.protocol import ClassifyParameters, Function


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

    @abstractmethod
    def confidence(self, scores: FloatArray) -> float:
        """Return how certain the model is of its result, from 0 to 1.

        `scores` are the scores that the model's own function gives.
        """

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


class Classify(Labeller, QueryAlgorithm):
    """Scores a model's own labels like Hugging Face's `text-classification` pipeline."""

    version = 2

    def __init__(self, *, model: str, labels: Sequence[str], function: Function) -> None:
        super().__init__(labels=labels)
        self.model = model
        self.function = function

    @override
    def texts(self, item: Text, parameters: ClassifyParameters) -> Sequence[Text]:
        check_top(parameters)
        return (item,)

    @override
    def answer(self, vectors: FloatArray, parameters: ClassifyParameters) -> Any:
        best = best_labels(vectors[0], parameters.function or self.function, parameters.top_k)
        return {
            "labels": [
                {"label": self.labels[place], "score": written(score)} for place, score in best
            ]
        }

    @override
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        logits = (await ask(self.model, [text]))[0]
        return label_scores(np.asarray(logits), function or self.function)

    @override
    def confidence(self, scores: FloatArray) -> float:
        if self.function == "sigmoid":
            # Each label is decided independently. The least certain decision counts.
            return float(np.maximum(scores, 1 - scores).min())
        return float(scores.max())
