"""Answers for texts longer than the model by overlapping windows, whose answers are combined."""

from typing import Any, Literal

from typing_extensions import override

from backends.algorithms.base import Algorithm
from backends.algorithms.classify import Classify, Labeller
from backends.algorithms.embedding import Embed, shorten
from backends.errors import ItemRefused
from backends.pipelines.ask import AlgorithmContext
from backends.pipelines.scores import apply_function
from backends.protocol import EmbedParameters, Function
from backends.types import FloatArray, Text

Combination = Literal["mean", "max", "first"]


class Windows:
    """Asks a model for every window of a text and combines the answers.

    Windows and their mean, maximum or first are those of Dai and Callan 2019 (arXiv:1905.09217,
    "AvgP, MaxP, FirstP").
    """

    def __init__(self, *, model: str, combine: Combination, overlap: int) -> None:
        self._model = model
        self._combine = combine
        self._overlap = overlap

    async def ask(self, text: str, ask: AlgorithmContext, function: Function) -> FloatArray:
        """Return the combination of what `function` makes of each window."""
        if self._combine == "first":
            first = await ask.windows(self._model, text, overlap=self._overlap, most=1)
            return apply_function(first[0], function)
        found = await ask.windows(self._model, text, overlap=self._overlap)
        lines = apply_function(found, function)
        combined: FloatArray = lines.max(axis=0) if self._combine == "max" else lines.mean(axis=0)
        return combined


class LongClassify(Labeller):
    """Classifies a text of any length by a trained model that reads one window at a time."""

    def __init__(self, *, below: Classify, combine: Combination, overlap: int) -> None:
        super().__init__(labels=below.labels)
        self._below = below
        self._windows = Windows(model=below.model, combine=combine, overlap=overlap)
        self.version = 1 + below.version

    @override
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        if not isinstance(text, str):
            raise ItemRefused("bad_item", "a long document is one text, not a pair")
        return await self._windows.ask(text, ask, function or self._below.function)

    @override
    def confidence(self, scores: FloatArray) -> float:
        return self._below.confidence(scores)


class LongEmbed(Algorithm):
    """Returns the vector of a text of any length."""

    def __init__(self, *, below: Embed, combine: Combination, overlap: int) -> None:
        self._below = below
        self._windows = Windows(model=below.model, combine=combine, overlap=overlap)
        self.dimensions = below.dimensions
        self.version = 1 + below.version

    @override
    async def run(self, item: str, parameters: EmbedParameters, ask: AlgorithmContext) -> Any:
        dimensions = self._below.check_dimensions(parameters)
        vector = await self._windows.ask(item, ask, "none")
        return {"embedding": shorten(vector[None, :], dimensions, parameters)[0]}
