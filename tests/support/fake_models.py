"""Provides models whose outputs a function computes, for tests of algorithms."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.windows import Span, Windows
from sluicegate.backends.types import FloatArray, Prompt, Text, TokenOffsets


class FakeModel:
    """A pipeline with a line of numbers per text. Records its questions one by one."""

    def __init__(self, outputs: Callable[[Text], Sequence[float]]) -> None:
        self._outputs = outputs
        self.questions: list[list[Text]] = []

    @property
    def rows(self) -> int:
        """How many rows were asked."""
        return sum(map(len, self.questions))

    async def vectors(
        self, texts: Sequence[Any], caller: RowCaller, prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        self.questions.append(list(texts))
        return np.array([self._outputs(text) for text in texts], dtype=np.float32)

    async def pairs(
        self, first: str, seconds: Sequence[str], caller: RowCaller, *, cut_first_only: bool
    ) -> FloatArray:
        return await self.vectors([(first, second) for second in seconds], caller)

    async def windows(
        self, text: str, caller: RowCaller, windows: Windows, *, prompt: Prompt | None = None
    ) -> FloatArray:
        return await self.vectors(
            [f"{prompt or ''}{part}" for part in parts(text, windows)], caller
        )

    async def pair_windows(
        self,
        text: str,
        others: Sequence[str],
        caller: RowCaller,
        windows: Windows,
        *,
        text_first: bool,
    ) -> FloatArray:
        pairs = [(part, other) for part in parts(text, windows) for other in others]
        return await self.vectors([pair if text_first else pair[::-1] for pair in pairs], caller)

    async def window_places(self, text: str, windows: Windows) -> list[Span]:
        places, start = [], 0
        for part in parts(text, windows):
            places.append((start, start + len(part)))
            start += len(part) + 1
        return places

    async def token_vectors(
        self, text: str, caller: RowCaller
    ) -> tuple[list[TokenOffsets], FloatArray]:
        raise NotImplementedError


def parts(text: str, windows: Windows) -> list[str]:
    found = text.split("|")
    return found[:1] if windows.only_first else found


def asking(**models: FakeModel) -> AlgorithmContext:
    """Return what asks these models for one item."""
    return AlgorithmContext(models, RowCaller(scope="tenant", deadline=math.inf))
