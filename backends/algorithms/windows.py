"""Asks models for the windows of a text that is longer than they read, and combines the answers."""

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
    """Says how windows overlap, and how what they answer becomes one.

    Windows and their mean, maximum or first are those of Dai and Callan 2019 (arXiv:1905.09217,
    "AvgP, MaxP, FirstP").
    """

    combine: Combination
    overlap: int

    async def of_text(
        self, model: str, text: str, ask: AlgorithmContext, *, prompt: str | None = None
    ) -> FloatArray:
        """Return `model`'s raw outputs, one line per window; see `AlgorithmContext.windows`."""
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
        """Return `model`'s raw outputs for each window with each of `others`.

        The shape is windows, others, values; see `AlgorithmContext.pair_windows`.
        """
        return await ask.pair_windows(
            model, text, others, overlap=self.overlap, most=self._most, text_first=text_first
        )

    def combined(self, lines: FloatArray) -> FloatArray:
        """Return one line that is made of a line per window."""
        if self.combine == "first":
            first: FloatArray = lines[0]
            return first
        made: FloatArray = lines.max(axis=0) if self.combine == "max" else lines.mean(axis=0)
        return made

    @property
    def _most(self) -> int:
        return 1 if self.combine == "first" else MAX_WINDOWS


class WindowedAlgorithm(Algorithm):
    """Scores an item whose long text may be read in windows."""

    @abstractmethod
    async def window_scores(
        self, item: Any, parameters: Any, ask: AlgorithmContext, windows: Windows
    ) -> FloatArray:
        """Return the scores that `run` makes of its text, one line per window of it."""
