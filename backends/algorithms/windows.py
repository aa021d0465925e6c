"""Reads a long text in windows, and combines the windows' scores."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from backends.algorithms.base import Algorithm
from backends.pipelines.ask import AlgorithmContext
from backends.pipelines.windows import MAX_WINDOWS
from backends.types import FloatArray

Combination = Literal["mean", "max", "first"]


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """Defines by how many tokens windows overlap, and how the scores of windows are combined.

    Scores are combined as in Dai and Callan 2019 (arXiv:1905.09217): mean (AvgP), maximum (MaxP) or
    first window (FirstP).
    """

    combine: Combination
    overlap: int

    async def of_text(
        self, model: str, text: str, ask: AlgorithmContext, *, prompt: str | None = None
    ) -> FloatArray:
        """Return raw outputs of `model`, one line per window; see `AlgorithmContext.windows`."""
        return await ask.windows(model, text, overlap=self.overlap, most=self._most, prompt=prompt)

    async def of_pairs(
        self,
        model: str,
        text: str,
        others: Sequence[str],
        ask: AlgorithmContext,
        *,
        text_first: bool,
    ) -> FloatArray:
        """Return raw outputs of `model` for each window paired with each of `others`.

        The shape is (windows, others, values). See `AlgorithmContext.pair_windows`.
        """
        return await ask.pair_windows(
            model, text, others, overlap=self.overlap, most=self._most, text_first=text_first
        )

    def combined(self, lines: FloatArray) -> FloatArray:
        """Combine the rows of all windows into one row."""
        if self.combine == "first":
            first: FloatArray = lines[0]
            return first
        made: FloatArray = lines.max(axis=0) if self.combine == "max" else lines.mean(axis=0)
        return made

    @property
    def _most(self) -> int:
        return 1 if self.combine == "first" else MAX_WINDOWS


class WindowedAlgorithm(Algorithm):
    """Scores an item whose text can also be read in windows."""

    @abstractmethod
    async def window_scores(
        self, item: Any, parameters: Any, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        """Return the same kind of scores as `run`, one row per window of the text."""
