"""Builds the rows of models that score spans of words for the labels of a request.

A row has the labels and then words of the text. A long text has several rows, each with a window of
words. `backends.model_tools.graphs.spans` says what the token types of a row mean.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from sluicegate.backends.pipelines.windows import Span
from sluicegate.backends.tokenization.layout import Layout
from sluicegate.backends.types import Encoding, FloatArray, IntArray

WINDOWS_AT_ONCE = 8
"""The most windows of an item whose outputs are in memory."""
_WORD_TYPE, _OTHER_TYPE, _LABEL_TYPE, _PROMPT_TYPE, _HEAD_TYPE, _TAIL_TYPE = range(6)
_DESCRIPTION = "[DESCRIPTION]"
# GLiNER2 puts its labels and their name in brackets, and marks the name with a token. A relation is
# a name with two labels of its own.
_PROMPT_TOKEN, _OPEN, _CLOSE, _BETWEEN = "[P]", "(", ")", "[SEP_STRUCT]"
_HEAD, _TAIL = "head", "tail"


class WordFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the rows of a model.

    `label_token` is put before each label, and `text_token` before the words. `label_place` says
    which token stands for a label: the `label_token`, or the token after it. `word_place` says
    which token stands for a word. A span has at most `max_width` words, and a row has at most
    `max_words` words. Rows of GLiNER2 have the name of a `schema` before the labels, no special
    tokens of the tokenizer, and words in lower case. If a row `has_relations`, each label is a
    relation, and the `label_token` is put before its head and its tail.
    """

    label_token: str
    text_token: str
    label_place: Literal["token", "after"]
    word_place: Literal["first", "last"]
    max_width: int
    max_words: int
    schema: str = ""
    has_relations: bool = False

    @property
    def extra_texts(self) -> tuple[str, ...]:
        """The texts of a prompt other than the labels."""
        own = (_PROMPT_TOKEN, self.schema, _OPEN, _CLOSE) if self.schema else ()
        ends = (_BETWEEN, _HEAD, _TAIL) if self.has_relations else ()
        return (self.label_token, self.text_token, *own, *ends)


def describe(schema: str, labels: Sequence[str], descriptions: Mapping[str, str]) -> str:
    """Return the name of a schema with the descriptions of its labels."""
    texts = [
        f" {_DESCRIPTION} {each}: {descriptions[each]}" for each in labels if each in descriptions
    ]
    return "".join([schema, *texts])


class ReadWords(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the words of a text that have tokens: their places in the text, and their tokens.

    `prompt` has the tokens before the words, and their types; `room` is the most tokens of words.
    """

    places: list[Span]
    tokens: list[IntArray]
    prompt: tuple[IntArray, IntArray]
    room: int


class WordOutputs(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the places of all words of a text, and the model's outputs for some windows of words.

    The spans that begin with one of the words `owned` belong to the window.
    """

    words: list[Span]
    windows: list[Span]
    owned: list[Span]
    outputs: list[FloatArray]


def prompt_row(
    labels: Sequence[str], tokens: Mapping[str, IntArray], form: WordFormat
) -> tuple[IntArray, IntArray]:
    """Return the tokens before the words, and the type of each; `tokens` has those of each text."""
    # The token after the marker of a label may stand for the label.
    shift = int(form.label_place == "after")
    parts, places, length = [], [], 0
    for text, kind in _prompt(labels, form):
        if kind != _OTHER_TYPE:
            places.append((length + shift, kind))
        parts.append(tokens[text])
        length += len(tokens[text])
    ids = np.concatenate(parts)
    types = np.full(length, _OTHER_TYPE, dtype=np.int32)
    for place, kind in places:
        types[place] = kind
    return ids, types


def _prompt(labels: Sequence[str], form: WordFormat) -> Iterator[tuple[str, int]]:
    """Yield the texts before the words, and the type of the token that stands for each."""
    if form.has_relations:
        for number, label in enumerate(labels):
            if number:
                yield _BETWEEN, _OTHER_TYPE
            ends = ((_HEAD, _HEAD_TYPE), (_TAIL, _TAIL_TYPE))
            yield from _schema(label, ends, form.label_token)
    else:
        marked = [(label, _LABEL_TYPE) for label in labels]
        if form.schema:
            yield from _schema(form.schema, marked, form.label_token)
        else:
            yield from _marked(marked, form.label_token)
    yield form.text_token, _OTHER_TYPE


def _schema(name: str, labels: Iterable[tuple[str, int]], marker: str) -> Iterator[tuple[str, int]]:
    yield from ((_OPEN, _OTHER_TYPE), (_PROMPT_TOKEN, _PROMPT_TYPE), (name, _OTHER_TYPE))
    yield _OPEN, _OTHER_TYPE
    yield from _marked(labels, marker)
    yield from ((_CLOSE, _OTHER_TYPE), (_CLOSE, _OTHER_TYPE))


def _marked(labels: Iterable[tuple[str, int]], marker: str) -> Iterator[tuple[str, int]]:
    for label, kind in labels:
        yield marker, kind
        yield label, _OTHER_TYPE


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


def word_row(words: ReadWords, span: Span, layout: Layout, form: WordFormat) -> Encoding:
    """Return the row of the words from the first to before the last place of `span`.

    A word that is longer than a row is truncated.
    """
    ids, types = words.prompt
    read = [word[: words.room] for word in words.tokens[span[0] : span[1]]]
    sizes = np.array([len(word) for word in read])
    ends = np.cumsum(sizes)
    kinds = np.full(ends[-1], _OTHER_TYPE, dtype=np.int32)
    kinds[ends - sizes if form.word_place == "first" else ends - 1] = _WORD_TYPE
    row, marks = np.concatenate([ids, *read]), np.concatenate([types, kinds])
    if not form.schema:
        start, end = layout.before, layout.before + len(marks)
        row = layout.single(row).ids
        own, marks = marks, np.full(len(row), _OTHER_TYPE, dtype=np.int32)
        marks[start:end] = own
    return Encoding(ids=row, type_ids=marks, key=row.tobytes() + b"|" + marks.tobytes())
