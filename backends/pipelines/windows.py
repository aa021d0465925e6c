"""Splits long texts into windows, combines the outputs of windows, and truncates texts."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from sluicegate.backends.types import FloatArray

Span = tuple[int, int]
Combination = Literal["mean", "max", "first"]
# The most rows of one item: windows of a text, times the texts that each window is paired with.
MAX_PAIRS = 1024
# A truncated text ends at a space, unless its last word is longer than this.
_LONGEST_WORD = 1000


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """Defines by how many tokens windows overlap, and how the scores of windows are combined.

    Scores are combined as in Dai and Callan 2019 (arXiv:1905.09217): mean (AvgP), maximum (MaxP) or
    first window (FirstP).
    """

    overlap: int
    combine: Combination = "mean"

    @property
    def only_first(self) -> bool:
        """Whether the text after the first window is left out."""
        return self.combine == "first"

    def combined(self, lines: FloatArray) -> FloatArray:
        """Combine the rows of all windows into one row."""
        if self.only_first:
            first: FloatArray = lines[0]
            return first
        made: FloatArray = lines.max(axis=0) if self.combine == "max" else lines.mean(axis=0)
        return made


def count_windows(tokens: int, size: int, overlap: int) -> int:
    """Return the number of windows that `window_spans` returns."""
    return 1 if tokens <= size else 1 - (size - tokens) // max(1, size - overlap)


def window_spans(tokens: int, size: int, overlap: int) -> list[Span]:
    """Return windows of `size` tokens.

    Each window repeats the last `overlap` tokens of the window before it.

    The overlap works like `stride` of Hugging Face's tokenizers. The last window may be shorter.
    """
    step = max(1, size - overlap)
    spans = [(0, min(size, tokens))]
    while spans[-1][1] < tokens:
        start = spans[-1][0] + step
        spans.append((start, min(start + size, tokens)))
    return spans


def join_windows(spans: Sequence[Span], rows: Sequence[FloatArray]) -> FloatArray:
    """Merge the outputs of windows into one array, one line per token.

    If a token is in two windows, its line comes from the window in which it is farther from an
    edge. So two windows meet in the middle of their overlap.
    """
    if len(spans) == 1:
        return rows[0]
    parts = []
    begin = 0
    for index, (start, end) in enumerate(spans):
        upto = (spans[index + 1][0] + end + 1) // 2 if index + 1 < len(spans) else end
        parts.append(rows[index][begin - start : upto - start])
        begin = upto
    return np.concatenate(parts)


def cut_text(text: str, characters: int) -> str:
    """Return at most the first `characters` characters of a text.

    The result ends before a word that would be split, unless this word is very long.
    """
    if len(text) <= characters:
        return text
    head = text[:characters]
    words = head.rsplit(None, 1)
    return words[0] if len(words) > 1 and len(words[1]) <= _LONGEST_WORD else head
