"""Texts through an encoder: tokens, then rows, then vectors."""

from collections.abc import Sequence

import numpy as np

from backends.batching.shared import Caller, SharedRows
from backends.errors import ItemRefused
from backends.tokenization.tokenizer import Tokenizer
from backends.types import Encoding, FloatArray, OutputKind, Piece, Text

# No token of a word piece model stands for more text than this: a longer word is one unknown.
_CHARACTERS_PER_TOKEN = 100
# A cut is moved back to a space no further than this; where there is none, any place is as good.
_LONGEST_WORD = 1000


class Encoder:
    """One encoder with its tokenizer; every head over it asks the same rows."""

    def __init__(
        self, *, name: str, tokenizer: Tokenizer, rows: SharedRows, max_tokens: int, truncate: bool
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._rows = rows
        self._max_tokens = max_tokens
        self._max_characters = max_tokens * _CHARACTERS_PER_TOKEN
        self._truncate = truncate

    async def vectors(self, texts: Sequence[Text], caller: Caller) -> FloatArray:
        """Return one pooled vector per text.

        Raises:
            ItemRefused: a text is empty or too long.
        """
        parts = [self._read(text) for text in texts]
        encodings = await self._tokenizer.encode(parts)
        for text, part, encoding in zip(texts, parts, encodings, strict=True):
            self._check(encoding, is_cut=part is not text)
        rows = await self._rows.ask(encodings, kind=OutputKind.POOLED, caller=caller)
        return np.stack(rows) if len(rows) > 1 else rows[0][None, :]

    async def token_vectors(self, text: str, caller: Caller) -> tuple[list[Piece], FloatArray]:
        """Return the place of every token of a text, and its vector.

        Raises:
            ItemRefused: the text is empty or too long.
        """
        part = self._read(text)
        (pieces,) = await self._tokenizer.pieces([part])
        self._check(pieces.encoding, is_cut=part is not text)
        (row,) = await self._rows.ask([pieces.encoding], kind=OutputKind.TOKENS, caller=caller)
        return pieces.pieces, row

    def _read(self, text: Text) -> Text:
        """Return what of a text is worth tokenizing: all of it, or what surely fills the model."""
        parts = (text,) if isinstance(text, str) else text
        if not any(part and not part.isspace() for part in parts):
            raise ItemRefused("empty_input", "the text is empty; send some")
        characters = sum(map(len, parts))
        if not self._truncate and characters > self._max_characters:
            raise ItemRefused(
                "input_too_long",
                f"the text has {characters} characters; `{self._name}` reads at most "
                f"{self._max_tokens} tokens; shorten it",
            )
        if max(map(len, parts)) <= self._max_characters:
            return text
        if isinstance(text, str):
            return _cut(text, self._max_characters)
        first, second = text
        return _cut(first, self._max_characters), _cut(second, self._max_characters)

    def _check(self, encoding: Encoding, *, is_cut: bool) -> None:
        if len(encoding.ids) > self._max_tokens:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(encoding.ids)} tokens; `{self._name}` reads at most "
                f"{self._max_tokens}; shorten it",
            )
        if is_cut and len(encoding.ids) < self._max_tokens:
            # What was left out belongs to the answer, and is too much to look through for it.
            raise ItemRefused(
                "input_too_long",
                f"the text has few words in more than {self._max_characters} characters; "
                "leave out what is no word",
            )
        if self._tokenizer.is_empty(encoding):
            raise ItemRefused("empty_input", "the text is empty; send some")


def _cut(text: str, characters: int) -> str:
    """Return the beginning of a text, without the word that the cut goes through."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    words = head.rsplit(None, 1)
    return words[0] if len(words) > 1 and len(words[1]) <= _LONGEST_WORD else head
