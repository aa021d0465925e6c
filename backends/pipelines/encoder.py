"""Texts through an encoder: tokens, then rows, then vectors."""

from collections.abc import Sequence

import numpy as np

from backends.batching.shared import Caller, SharedRows
from backends.errors import ItemRefused
from backends.tokenization.tokenizer import Tokenizer
from backends.types import Encoding, FloatArray, OutputKind, Piece, Text

# No token of a word piece model stands for more text than this: a longer word is one unknown.
_CHARACTERS_PER_TOKEN = 100


class Encoder:
    """One encoder with its tokenizer; every head over it asks the same rows."""

    def __init__(
        self, *, name: str, tokenizer: Tokenizer, rows: SharedRows, max_tokens: int, truncate: bool
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._rows = rows
        self._max_tokens = max_tokens
        self._truncate = truncate

    async def vectors(self, texts: Sequence[Text], caller: Caller) -> FloatArray:
        """Return one pooled vector per text.

        Raises:
            ItemRefused: a text is empty or too long.
        """
        for text in texts:
            self._check_text(text)
        encodings = await self._tokenizer.encode(texts)
        for encoding in encodings:
            self._check_length(encoding)
        rows = await self._rows.ask(encodings, kind=OutputKind.POOLED, caller=caller)
        return np.stack(rows) if len(rows) > 1 else rows[0][None, :]

    async def token_vectors(self, text: str, caller: Caller) -> tuple[list[Piece], FloatArray]:
        """Return the place of every token of a text, and its vector.

        Raises:
            ItemRefused: the text is empty or too long.
        """
        self._check_text(text)
        (pieces,) = await self._tokenizer.pieces([text])
        self._check_length(pieces.encoding)
        (row,) = await self._rows.ask([pieces.encoding], kind=OutputKind.TOKENS, caller=caller)
        return pieces.pieces, row

    def _check_text(self, text: Text) -> None:
        parts = (text,) if isinstance(text, str) else text
        if not any(part and not part.isspace() for part in parts):
            raise ItemRefused("empty_input", "the text is empty; send some")
        characters = sum(map(len, parts))
        if not self._truncate and characters > self._max_tokens * _CHARACTERS_PER_TOKEN:
            raise ItemRefused(
                "input_too_long",
                f"the text has {characters} characters; `{self._name}` reads at most "
                f"{self._max_tokens} tokens; shorten it",
            )

    def _check_length(self, encoding: Encoding) -> None:
        if len(encoding.ids) > self._max_tokens:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(encoding.ids)} tokens; `{self._name}` reads at most "
                f"{self._max_tokens}; shorten it",
            )
