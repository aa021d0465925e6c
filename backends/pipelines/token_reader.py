"""Counts, shows and decodes tokens, and checks token ids that a caller sent instead of text."""

from collections.abc import Sequence
from typing import Any

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.windows import count_windows
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from sluicegate.wire.protocol import MAX_WINDOWS

# A text is read in windows if it has at most this many characters for each token of the windows.
CHARACTERS_PER_WINDOWED_TOKEN = 16
# The most characters of a text. Each may be a token, and a token takes half a kilobyte.
_MOST = 1024 * 1024


class TokenReader:
    """Counts, shows and decodes the tokens of one encoder. It runs no model."""

    def __init__(self, *, name: str, tokenizer: Tokenizer, max_tokens: int, prompt: str) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._prompt = prompt
        self._most = min(_MOST, MAX_WINDOWS * max_tokens * CHARACTERS_PER_WINDOWED_TOKEN)

    @property
    def special_tokens(self) -> int:
        """The number of special tokens in a row of one text."""
        return self._tokenizer.layout.added

    async def count(self, text: str) -> int:
        """Return the number of tokens of a text, without special tokens.

        Raises:
            ItemRefused: the text is too long.
        """
        self._check_length(text, "characters")
        return await self._tokenizer.count(text)

    async def show(self, text: str, *, add_special_tokens: bool) -> tuple[int, bytes]:
        """Return the number of tokens of a text, and a JSON object with ids, tokens and offsets.

        Raises:
            ItemRefused: the text is too long.
        """
        self._check_length(text, "characters")
        return await self._tokenizer.show(text, add_special_tokens=add_special_tokens)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return how the vocabulary writes tokens."""
        return self._tokenizer.token_texts(ids)

    async def windows(self, tokens: int, overlap: int) -> int:
        """Return the number of windows of a text with `tokens` tokens; 1 for a text that fits.

        Each window has the special tokens and the model's prompt, and repeats `overlap` tokens of
        the window before it.
        """
        of_prompt = await self.count(self._prompt) if self._prompt else 0
        size = max(1, self._max_tokens - self.special_tokens - of_prompt)
        return count_windows(tokens, size, overlap) if tokens else 0

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens.

        Raises:
            ItemRefused: an id is not in the vocabulary, or there are no ids, or too many.
        """
        self.check(ids)
        return await self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def check(self, ids: Sequence[int]) -> None:
        """Check token ids that a caller sent instead of text.

        Raises:
            ItemRefused: an id is not in the vocabulary, or there are no ids, or too many.
        """
        if not ids:
            raise ItemRefused("empty_input", "there are no tokens; send at least one")
        self._check_length(ids, "tokens")
        strange = self._tokenizer.unknown_id(ids)
        if strange is not None:
            raise ItemRefused(
                "bad_token",
                f"`{strange}` is not a token id of `{self._name}`; send ids that `tokenize` "
                "returned for this model, or send the text",
            )

    def _check_length(self, text: Sequence[Any], unit: str) -> None:
        if len(text) > self._most:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(text)} {unit}; `{self._name}` accepts at most {self._most}; "
                "send it in parts",
            )
