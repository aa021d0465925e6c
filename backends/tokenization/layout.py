"""Learns the special tokens a tokenizer adds, so that rows are assembled from ids.

A text that is one side of many rows (the premise of a zero-shot question, the windows of a long
document) is tokenized once. `tests/unit/backends/tokenization/test_layout.py` holds every row so
made to the one that the tokenizer makes of the texts.
"""

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np
import tokenizers

from backends.types import Encoding, IntArray

# Texts that most tokenizers keep tokens of; after them words of the vocabulary.
_PROBES, _MOST_PROBES = ("a", "0", "."), 100


class _Part(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Describes a part of a row: fixed ids, or those of text number `text`; their type."""

    ids: IntArray
    types: IntArray
    text: int | None = None


class Layout:
    """Holds the order of special tokens and texts in a row of one text and of two."""

    def __init__(self, single: Sequence[_Part], pair: Sequence[_Part]) -> None:
        self._single = single
        self._pair = pair
        place = [part.text for part in single].index(0)
        self._head = [int(part.ids[0]) for part in single[:place]]
        self._tail = [int(part.ids[0]) for part in single[place + 1 :]]
        self.before = len(self._head)
        self.added = _fixed(single)
        self.added_to_pair = _fixed(pair)

    def single(self, ids: IntArray) -> Encoding:
        """Return the row of one text."""
        parts = [part.ids if part.text is None else ids for part in self._single]
        joined = np.concatenate(parts)
        return Encoding(ids=joined, type_ids=None, key=joined.tobytes())

    def single_of(self, tokens: list[int]) -> Encoding:
        """Return the row of one text, as `single` does, of tokens in a list."""
        ids = np.array([*self._head, *tokens, *self._tail], dtype=np.int32)
        return Encoding(ids=ids, type_ids=None, key=ids.tobytes())

    def inner(self, ids: IntArray) -> IntArray:
        """Return the tokens of one text, of a row of it or of themselves."""
        end = len(ids) - len(self._tail)
        is_row = (
            self.before <= end
            and ids[: self.before].tolist() == self._head
            and ids[end:].tolist() == self._tail
        )
        return ids[self.before : end] if is_row else ids

    def pair(self, first: IntArray, second: IntArray) -> Encoding:
        """Return the row of two texts."""
        ids: list[IntArray] = []
        types: list[IntArray] = []
        for part in self._pair:
            if part.text is None:
                ids.append(part.ids)
                types.append(part.types)
                continue
            side = first if part.text == 0 else second
            ids.append(side)
            types.append(np.full(len(side), part.types[0], dtype=np.int32))
        joined, kinds = np.concatenate(ids), np.concatenate(types)
        return Encoding(ids=joined, type_ids=kinds, key=joined.tobytes() + b"|" + kinds.tobytes())


def cut_first(first: IntArray, second: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Cut the first text until both fit `room` tokens (`only_first` of Hugging Face)."""
    return first[: max(0, room - len(second))], second


def cut_longest(first: IntArray, second: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Cut the longer text, then both alike, until both fit (`longest_first`)."""
    if len(first) + len(second) <= room:
        return first, second
    short, long = sorted((len(first), len(second)))
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    kept = (long, short) if len(first) > len(second) else (short, long)
    return first[: kept[0]], second[: kept[1]]


def learn_layout(tokenizer: tokenizers.Tokenizer, *, token_types: bool = True) -> Layout:
    """Return the layout of a tokenizer that cuts nothing; without `token_types` all are 0.

    Raises:
        ValueError: its rows do not hold one text, or two in their order, between special tokens.
    """
    for probe in (*_PROBES, *itertools.islice(tokenizer.get_vocab(), _MOST_PROBES)):
        parts = [_parts(tokenizer.encode(probe)), _parts(tokenizer.encode(probe, probe))]
        texts = [[part.text for part in found if part.text is not None] for found in parts]
        if texts == [[0], [0, 1]]:
            if not token_types:
                parts = [
                    [msgspec.structs.replace(part, types=part.types * 0) for part in found]
                    for found in parts
                ]
            return Layout(*parts)
    raise ValueError("its rows are none of a text, or a pair, between special tokens")


def learn_prompt(tokenizer: tokenizers.Tokenizer, prompt: str) -> tuple[int, ...] | None:
    """Return the tokens that a prompt puts before those of a text; `None` if it changes these.

    They are not always the prompt's own: its last space may be part of the first word.
    """
    found = set()
    for probe in _PROBES:
        own = tokenizer.encode(probe, add_special_tokens=False).ids
        both = tokenizer.encode(prompt + probe, add_special_tokens=False).ids
        end = len(both) - len(own)
        if both[end:] != own:
            return None
        found.add(tuple(both[:end]))
    return found.pop() if len(found) == 1 else None


def _parts(encoding: tokenizers.Encoding) -> list[_Part]:
    parts: list[_Part] = []
    previous: int | None = -1
    columns = zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True)
    for number, kind, text in columns:
        ids, types = np.array([number], dtype=np.int32), np.array([kind], dtype=np.int32)
        if text is None or text != previous:
            parts.append(_Part(ids=ids, types=types, text=text))
        previous = text
    return parts


def _fixed(parts: Sequence[_Part]) -> int:
    return sum(len(part.ids) for part in parts if part.text is None)
