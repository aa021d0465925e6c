"""Learns which special tokens a tokenizer puts into a row, so that rows can be built from ids.

A text that is part of many rows is then tokenized only once. Examples are the text of a zero-shot
request and a window of a long document. `tests/unit/backends/tokenization/test_layout.py` checks
that the rows equal the rows that the tokenizer itself makes.
"""

import itertools
from array import array
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import tokenizers

from sluicegate.backends.types import Encoding, IntArray

# Texts to learn from. If a tokenizer drops all of them, words of its vocabulary are tried.
_PROBES, _MOST_PROBES = ("a", "0", "."), 100


class _Slot(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A slot of a row: one special token, or the tokens of the first or second text."""

    ids: IntArray
    types: IntArray
    text: int | None = None


class Layout:
    """Holds the order of special tokens and texts, in rows of one text and in rows of a pair."""

    def __init__(self, single: Sequence[_Slot], pair: Sequence[_Slot]) -> None:
        self._single = single
        self._pair = pair
        place = [slot.text for slot in single].index(0)
        self._head = [int(slot.ids[0]) for slot in single[:place]]
        self._tail = [int(slot.ids[0]) for slot in single[place + 1 :]]
        self.before = len(self._head)
        self.added = _fixed(single)
        self.added_to_pair = _fixed(pair)
        second = [slot.text for slot in pair].index(1)
        self.before_second = _fixed(pair[:second])

    def single(self, ids: IntArray) -> Encoding:
        """Return the row of one text."""
        slots = [slot.ids if slot.text is None else ids for slot in self._single]
        joined = np.concatenate(slots)
        return Encoding(ids=joined, type_ids=None, key=joined.tobytes())

    def single_of(self, tokens: list[int]) -> Encoding:
        """Return the row of one text whose tokens are in a list; this is faster than `single`."""
        key = array("i", [*self._head, *tokens, *self._tail]).tobytes()
        return Encoding(ids=np.frombuffer(key, dtype=np.int32), type_ids=None, key=key)

    def inner(self, ids: IntArray) -> IntArray:
        """Return a text's tokens without the special tokens around them, if there are any."""
        end = len(ids) - len(self._tail)
        is_row = (
            self.before <= end
            and ids[: self.before].tolist() == self._head
            and ids[end:].tolist() == self._tail
        )
        return ids[self.before : end] if is_row else ids

    def pair(self, first: IntArray, second: IntArray) -> Encoding:
        """Return the row of a pair of texts."""
        ids: list[IntArray] = []
        types: list[IntArray] = []
        for slot in self._pair:
            if slot.text is None:
                ids.append(slot.ids)
                types.append(slot.types)
                continue
            side = first if slot.text == 0 else second
            ids.append(side)
            types.append(np.full(len(side), slot.types[0], dtype=np.int32))
        joined, kinds = np.concatenate(ids), np.concatenate(types)
        return Encoding(ids=joined, type_ids=kinds, key=joined.tobytes() + b"|" + kinds.tobytes())


def cut_first(first: IntArray, second: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Truncate the first text until both fit into `room` tokens (Hugging Face's `only_first`)."""
    return first[: max(0, room - len(second))], second


def cut_longest(first: IntArray, second: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Truncate the longer text, and then both texts equally, until both fit into `room` tokens.

    Hugging Face calls this `longest_first`.
    """
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
    """Return the layout of a tokenizer that does not truncate.

    Without `token_types`, all token types of the layout are 0.

    Raises:
        ValueError: the tokenizer changes the order of texts, or puts special tokens inside them.
    """
    for probe in _probes(tokenizer):
        slots = [_slots(tokenizer.encode(probe)), _slots(tokenizer.encode(probe, probe))]
        texts = [[slot.text for slot in found if slot.text is not None] for found in slots]
        if texts == [[0], [0, 1]]:
            if not token_types:
                slots = [
                    [msgspec.structs.replace(slot, types=slot.types * 0) for slot in found]
                    for found in slots
                ]
            return Layout(*slots)
    raise ValueError("its rows are not one text or a pair of texts between special tokens")


def _probes(tokenizer: tokenizers.Tokenizer) -> Iterator[str]:
    yield from _PROBES
    # To list the vocabulary takes as long as everything else, and is hardly ever necessary.
    yield from itertools.islice(tokenizer.get_vocab(), _MOST_PROBES)


def learn_prompt(tokenizer: tokenizers.Tokenizer, prompt: str) -> tuple[int, ...] | None:
    """Return the tokens that a prompt adds before a text's tokens.

    These tokens may differ from the tokens of the prompt alone, because the last space of the
    prompt may join the first word of the text. Return `None` if the prompt changes the tokens of
    the text.
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


def _slots(encoding: tokenizers.Encoding) -> list[_Slot]:
    slots: list[_Slot] = []
    previous: int | None = -1
    columns = zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True)
    for number, kind, text in columns:
        ids, types = np.array([number], dtype=np.int32), np.array([kind], dtype=np.int32)
        if text is None or text != previous:
            slots.append(_Slot(ids=ids, types=types, text=text))
        previous = text
    return slots


def _fixed(slots: Sequence[_Slot]) -> int:
    return sum(len(slot.ids) for slot in slots if slot.text is None)
