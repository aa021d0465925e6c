"""Answers items with texts too long for one row, by combining scores of overlapping windows."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from typing_extensions import override

from sluicegate.backends.algorithms.base import (
    Algorithm,
    Algorithms,
    ModelAlgorithms,
    Recipe,
    WindowedAlgorithm,
)
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.embedding import Embed, dense_input, shorten
from sluicegate.backends.algorithms.labels import Label, Labeller, WindowScores, rank
from sluicegate.backends.algorithms.questions import ZeroShotTask, chosen
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.scores import apply_function, exact
from sluicegate.backends.pipelines.windows import Combination, Windows
from sluicegate.backends.types import FloatArray, Text
from sluicegate.wire.protocol import (
    ChooseItem,
    ChooseParameters,
    EmbedItem,
    EmbedParameters,
    Function,
    RerankParameters,
    Task,
    ZeroShotParameters,
)


class LongClassify(Labeller):
    """Classifies a text of any length with a classifier that reads one window at a time.

    For a pair of texts, each window of the second text is paired with the whole first text.
    """

    def __init__(self, *, below: Classify, windows: Windows) -> None:
        super().__init__(labels=below.labels)
        self.below = below
        self._windows = windows
        self.version = 2 + below.version

    @override
    async def scores(
        self, text: Text, ask: AlgorithmContext, function: Function | None = None
    ) -> FloatArray:
        model = self.below.model
        if isinstance(text, str):
            logits = await ask.windows(model, text, self._windows)
        else:
            first, second = text
            pairs = await ask.pair_windows(model, second, [first], self._windows, text_first=False)
            logits = pairs[:, 0]
        return self._windows.combined(apply_function(logits, function or self.below.function))

    @override
    async def window_scores(
        self, text: str, ask: AlgorithmContext, windows: Windows
    ) -> WindowScores:
        return await self.below.window_scores(text, ask, windows)

    @override
    def confidence(self, scores: FloatArray) -> float:
        return self.below.confidence(scores)


class LongEmbed(Algorithm):
    """Returns the vector of a text of any length."""

    def __init__(self, *, below: Embed, windows: Windows) -> None:
        self._below = below
        self._windows = windows
        self.dimensions = below.dimensions
        self.prompts = tuple(below.named_prompts)
        self.version = 1 + below.version

    @override
    async def run(
        self,
        item: str | tuple[int, ...] | EmbedItem,
        parameters: EmbedParameters,
        ask: AlgorithmContext,
    ) -> Any:
        text = dense_input(item)
        if not isinstance(text, str):
            raise ItemRefused("bad_item", "a long document is a text, not tokens; send the text")
        dimensions = self._below.check_dimensions(parameters)
        prompt = self._below.prompt(parameters)
        found = await ask.windows(self._below.model, text, self._windows, prompt=prompt)
        vector = self._windows.combined(found)
        return {"embedding": shorten(vector[None, :], dimensions, parameters)[0]}


class _LongItem(Algorithm):
    """Combines the scores that the algorithm `below` gives to the windows of an item."""

    def __init__(self, *, below: WindowedAlgorithm, windows: Windows) -> None:
        self.below = below
        self._windows = windows
        self.version = 1 + below.version

    async def combined(self, item: Any, parameters: Any, ask: AlgorithmContext) -> FloatArray:
        """Return the combined scores of an item."""
        lines = await self.below.window_scores(item, parameters, ask, self._windows)
        return self._windows.combined(lines)


class LongRerank(_LongItem):
    """Scores a document of any length for a query; every window is paired with the query."""

    @override
    async def run(self, item: str, parameters: RerankParameters, ask: AlgorithmContext) -> Any:
        return {"score": exact((await self.combined(item, parameters, ask))[-1])}


class LongZeroShot(_LongItem, ZeroShotTask):
    """Scores the caller's labels for a text of any length."""

    @override
    async def rank(
        self, text: str, parameters: ZeroShotParameters, ask: AlgorithmContext
    ) -> list[Label]:
        return rank(parameters.labels, await self.combined(text, parameters, ask))


class LongChoose(_LongItem):
    """Picks the choice that fits a prompt of any length."""

    @override
    async def run(
        self, item: ChooseItem, parameters: ChooseParameters, ask: AlgorithmContext
    ) -> Any:
        return chosen(await self.combined(item, parameters, ask))


class LongDocumentRecipe(Recipe, frozen=True):
    """Builds, for each task of one model, an algorithm that reads texts of any length.

    `combine` defaults to `max` for `rerank`, and to `mean` for all other tasks.
    """

    combine: Combination | None = None
    overlap: Annotated[int, msgspec.Meta(ge=0)] = 32

    @override
    def build(self, below: Sequence[ModelAlgorithms]) -> Algorithms:
        if len(below) == 1:
            if self.overlap > below[0].info.max_tokens // 2:
                raise ValueError(
                    "has an `overlap` of more than half the tokens that its model reads"
                )
            found = {
                task: self._read_in_windows(task, algorithm)
                for task, algorithm in below[0].algorithms.items()
            }
            if available := {task: long for task, long in found.items() if long is not None}:
                return available
        raise ValueError(
            "needs `uses` of one model that answers `classify`, `embed`, `rerank`, `zero-shot` or "
            "`choose` and is not itself a `long-document`"
        )

    def _read_in_windows(self, task: Task, below: Algorithm) -> Algorithm | None:
        """Return an algorithm over `below`; `None` if `below` cannot score a text in windows."""
        default: Combination = "max" if task is Task.RERANK else "mean"
        windows = Windows(combine=self.combine or default, overlap=self.overlap)
        if isinstance(below, Classify):
            return LongClassify(below=below, windows=windows)
        if isinstance(below, Embed):
            return LongEmbed(below=below, windows=windows)
        kinds: dict[Task, type[LongRerank | LongZeroShot | LongChoose]] = {
            Task.RERANK: LongRerank,
            Task.ZERO_SHOT: LongZeroShot,
            Task.CHOOSE: LongChoose,
        }
        if isinstance(below, WindowedAlgorithm) and task in kinds:
            return kinds[task](below=below, windows=windows)
        return None
