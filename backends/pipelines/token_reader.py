"""Shows the tokens that a model reads of texts, and checks tokens that come in place of texts."""

from collections.abc import Sequence
from typing import Any

from backends.errors import ItemRefused
from backends.pipelines.windows import MAX_WINDOWS
from backends.tokenization.tokenizer import Tokenizer

# A text is read in windows if it has no more than this for each of their tokens.
CHARACTERS_PER_WINDOWED_TOKEN = 16
# Each character may be a token, which takes half a kilobyte while it is read.
_MOST = 1024 * 1024


class TokenReader:
    """Counts and shows the tokens of one encoder's texts. It runs no model."""

    def __init__(self, *, name: str, tokenizer: Tokenizer, max_tokens: int, prompt: str) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._prompt = prompt
        self._most = min(_MOST, MAX_WINDOWS * max_tokens * CHARACTERS_PER_WINDOWED_TOKEN)

    @property
    def special_tokens(self) -> int:
        """How many tokens every row of one text has beside those of the text."""
        return self._tokenizer.layout.added

    async def count(self, text: str) -> int:
        """Return how many tokens a text has, without special ones.

        Raises:
            ItemRefused: it is longer than what is read in windows.
        """
        self._check_length(text, "characters")
        return await self._tokenizer.count(text)

    async def show(self, text: str, *, add_special_tokens: bool) -> tuple[int, bytes]:
        """Return how many tokens a text has, and a JSON object with ids, tokens and offsets.

        Raises:
            ItemRefused: it is longer than what is read in windows.
        """
        self._check_length(text, "characters")
        return await self._tokenizer.show(text, add_special_tokens=add_special_tokens)

    async def windows(self, tokens: int, overlap: int) -> int:
        """Return how many windows a text is of so many tokens: 1 if the model reads it at once.

        Each has the special tokens and the model's prompt, and `overlap` tokens of the one before.
        """
        of_prompt = await self.count(self._prompt) if self._prompt else 0
        size = max(1, self._max_tokens - self.special_tokens - of_prompt)
        if tokens <= size:
            return min(1, tokens)
        step = max(1, size - overlap)
        return 1 - (size - tokens) // step

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens.

        Raises:
            ItemRefused: one is not of the vocabulary, or there are none or too many.
        """
        self.check(ids)
        return await self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def check(self, ids: Sequence[int]) -> None:
        """Check tokens that came in place of a text.

        Raises:
            ItemRefused: one is not of the vocabulary, or there are none or too many.
        """
        if not ids:
            raise ItemRefused("empty_input", "there are no tokens; send some")
        self._check_length(ids, "tokens")
        strange = self._tokenizer.unknown_id(ids)
        if strange is not None:
            raise ItemRefused(
                "bad_token",
                f"`{strange}` is no token of `{self._name}`; send ids of its own vocabulary, which "
                "`tokenize` answers, or the text",
            )

    def _check_length(self, text: Sequence[Any], unit: str) -> None:
        if len(text) > self._most:
            raise ItemRefused(
                "input_too_long",
                f"the text has {len(text)} {unit}; `{self._name}` shows, counts or takes at most "
                f"{self._most}; send it in parts",
            )
