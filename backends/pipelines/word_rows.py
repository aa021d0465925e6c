"""Builds the rows of models that score spans of words for the labels of a request.

A row has the labels and then words of the text. A long text has several rows, each with a window of
words. `backends.model_tools.graphs.spans` says what the token types of a row mean.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from sluicegate.backends.pipelines.windows import Span
from sluicegate.backends.tokenization.layout import Layout
from sluicegate.backends.types import Encoding, FloatArray, IntArray

# The words of GLiNER: letters and digits, which hyphens and underscores may join, or any other
# character that is no space.
_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
WINDOWS_AT_ONCE = 8
"""The most windows of an item whose outputs are in memory."""
_WORD_TYPE, _OTHER_TYPE, _LABEL_TYPE = 0, 1, 2


class WordFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the rows of a model.

    `label_token` is put before each label, and `text_token` before the words. `label_place` says
    which token stands for a label: the `label_token`, or the token after it. `word_place` says
    which token stands for a word. A span has at most `max_width` words, and a row has at most
    `max_words` words.
    """

    label_token: str
    text_token: str
    label_place: Literal["token", "after"]
    word_place: Literal["first", "last"]
    max_width: int
    max_words: int


class WordOutputs(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the places of all words of a text, and the model's outputs for some windows of words.

    The spans that begin with one of the words `owned` belong to the window.
    """

    words: list[Span]
    windows: list[Span]
    owned: list[Span]
    outputs: list[FloatArray]


def split_words(text: str, most: int | None = None) -> list[Span]:
    """Return the start and the end of each word, in characters; of at most `most` words."""
    return [match.span() for match in itertools.islice(_WORD.finditer(text), most)]


def prompt_row(
    labels: Sequence[str], tokens: Mapping[str, IntArray], form: WordFormat
) -> tuple[IntArray, IntArray]:
    """Return the tokens before the words, and the type of each; `tokens` has those of each text."""
    marker, end = tokens[form.label_token], tokens[form.text_token]
    parts, places, length = [], [], 0
    for label in labels:
        places.append(length + (form.label_place == "after"))
        parts += [marker, tokens[label]]
        length += len(marker) + len(tokens[label])
    ids = np.concatenate([*parts, end])
    types = np.full(len(ids), _OTHER_TYPE, dtype=np.int32)
    types[places] = _LABEL_TYPE
    return ids, types


def word_spans(lengths: Sequence[int], *, room: int, form: WordFormat, most: int) -> list[Span]:
    """Return windows of words that have at most `room` tokens; `lengths` has those of each word.

    Two windows share a quarter of their words, and at least those of two long spans. If there are
    more than `most` windows, only `most + 1` are returned.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    spans: list[Span] = []
    start = 0
    while lengths and len(spans) <= most:
        fitting = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        end = min(fitting, start + form.max_words)
        spans.append((start, end))
        if end == len(lengths):
            break
        size = end - start
        start = max(start + 1, end - min(max(size // 4, 2 * form.max_width), size // 2))
    return spans


def owned_words(spans: Sequence[Span]) -> list[Span]:
    """Return the words with which the spans of each window begin.

    Two windows meet in the middle of the words that they share, as in `join_windows`.
    """
    cuts = [(after[0] + before[1] + 1) // 2 for before, after in itertools.pairwise(spans)]
    return list(zip([0, *cuts], [*cuts, *(end for _, end in spans[-1:])], strict=False))


def word_row(
    prompt: tuple[IntArray, IntArray],
    words: Sequence[IntArray],
    layout: Layout,
    form: WordFormat,
) -> Encoding:
    """Return the row of a prompt and words."""
    ids, types = prompt
    sizes = np.array([len(word) for word in words])
    ends = np.cumsum(sizes)
    kinds = np.full(ends[-1], _OTHER_TYPE, dtype=np.int32)
    kinds[ends - sizes if form.word_place == "first" else ends - 1] = _WORD_TYPE
    row = layout.single(np.concatenate([ids, *words])).ids
    marks = np.full(len(row), _OTHER_TYPE, dtype=np.int32)
    marks[layout.before : layout.before + len(types) + len(kinds)] = np.concatenate([types, kinds])
    return Encoding(ids=row, type_ids=marks, key=row.tobytes() + b"|" + marks.tobytes())
