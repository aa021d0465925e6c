"""Labels of a text by a trained head."""

from typing import Any

import msgspec
import numpy as np
from typing_extensions import override

from backends.algorithms.base import Algorithm
from backends.errors import ItemRefused
from backends.pipelines.ask import Ask
from backends.pipelines.scores import Function, apply_function, best_first, rounded
from backends.protocol import ClassifyParameters
from backends.types import FloatArray, Text


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A label and how sure the model is of it."""

    label: str
    score: float

    def as_json(self) -> dict[str, Any]:
        """Return it as it is written in an answer."""
        return {"label": self.label, "score": self.score}


def rank(labels: list[str], scores: FloatArray, top: int | None = None) -> list[Label]:
    """Return labels with their scores, best first."""
    written = rounded(scores)
    return [Label(label=labels[i], score=written[i]) for i in best_first(scores, top)]


class Classify(Algorithm):
    """Scores a model's own labels for a text or a pair of texts."""

    def __init__(self, *, model: str, labels: list[str], function: Function) -> None:
        self._model = model
        self._labels = labels
        self._function = function

    @property
    @override
    def version(self) -> int:
        return 1

    @override
    async def run(self, item: Text, parameters: ClassifyParameters, ask: Ask) -> Any:
        if parameters.top_k is not None and parameters.top_k < 1:
            raise ItemRefused("bad_top_k", "`top_k` must be at least 1; leave it out for all")
        ranked = await self.rank(
            item, ask, top=parameters.top_k, function=parameters.function or self._function
        )
        return {"labels": [label.as_json() for label in ranked]}

    async def rank(
        self, text: Text, ask: Ask, *, top: int | None = None, function: Function | None = None
    ) -> list[Label]:
        """Return the labels of a text, best first, for an algorithm above."""
        logits = (await ask(self._model, [text]))[0]
        scores = apply_function(np.asarray(logits), function or self._function)
        return rank(self._labels, scores, top)
