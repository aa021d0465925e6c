"""Scores a model's labels from its logits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import override

from sluicegate.backends.algorithms.base import QueryAlgorithm
from sluicegate.backends.algorithms.labels import Labeller, WindowScores, check_top
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import apply_function, best_labels, label_scores, written
from sluicegate.backends.pipelines.windows import Windows
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import ClassifyParameters, Function


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
    async def window_scores(
        self, text: str, ask: AlgorithmContext, windows: Windows
    ) -> WindowScores:
        logits = await ask.windows(self.model, text, windows)
        places = partial(ask.window_places, self.model, text, windows)
        if len(logits) == 1:  # as `scores`, which takes less time
            return WindowScores(label_scores(logits[0], self.function)[None], places)
        return WindowScores(apply_function(logits, self.function), places)

    @override
    def confidence(self, scores: FloatArray) -> float:
        if self.function == "sigmoid":
            # Each label is decided independently. The least certain decision counts.
            return float(np.maximum(scores, 1 - scores).min())
        return super().confidence(scores)
