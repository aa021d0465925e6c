"""Places windows over a long text, merges their answers for its tokens, and cuts texts. Pure."""

from collections.abc import Sequence

import numpy as np

from backends.types import FloatArray

Span = tuple[int, int]
# So many of one text are read.
MAX_WINDOWS = 64
# So many rows are made of the windows of a text and what each is paired with.
MAX_PAIRS = 1024
# A cut is moved back to a space no further than this; where there is none, any place is as good.
_LONGEST_WORD = 1000


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


def cut_text(text: str, characters: int) -> str:
    """Return the beginning of a text, without the word that the cut goes through."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    words = head.rsplit(None, 1)
    return words[0] if len(words) > 1 and len(words[1]) <= _LONGEST_WORD else head
