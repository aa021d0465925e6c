"""Places windows over a long text and merges their answers for its tokens. Pure."""

from collections.abc import Sequence

import numpy as np

from backends.types import FloatArray

Span = tuple[int, int]
# So many of one text are read.
MAX_WINDOWS = 64


def window_spans(tokens: int, size: int, overlap: int) -> list[Span]:
    """Return the windows of `size` tokens over `tokens`, each with `overlap` of the one before.

    As `stride` of Hugging Face's tokenizers: the last window is as short as what is left.
    """
    step = max(1, size - overlap)
    spans = [(0, min(size, tokens))]
    while spans[-1][1] < tokens:
        start = spans[-1][0] + step
        spans.append((start, min(start + size, tokens)))
    return spans


def join_windows(spans: Sequence[Span], rows: Sequence[FloatArray]) -> FloatArray:
    """Return one line per token of the text, of the window whose edges are farthest from it.

    Two windows meet in the middle of what they share, so a word that one of them cuts is whole in
    the other.
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
