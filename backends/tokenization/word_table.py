"""Tokenizes texts by looking up their words in the vocabulary.

A WordPiece tokenizer of the BERT family splits a text at spaces and around punctuation. A word that
is in its vocabulary becomes one token. The tokenizer reads the other words of many texts in one
call. A look-up takes a tenth of the tokenizer's time.
`tests/unit/backends/tokenization/test_word_table.py` checks that the look-up and the tokenizer give
the same tokens.
"""

import json
import re
import string
from collections.abc import Callable, Sequence
from itertools import repeat

from sluicegate.backends.types import RowInput

# A tokenizer may remove these characters, and so join the words beside them.
_CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SPACED = {sign: f" {sign} " for sign in string.punctuation}
# The tokenizer treats a longer word as unknown, even if it is in the vocabulary.
_LONGEST_WORD = 100
# The look-up holds the GIL, so longer texts are left to the tokenizer, which releases it.
_LONGEST_TEXT = 4096
# The share of words that may be missing in the table.
_MOST_OTHERS = 1 / 4
# With more added tokens, searching for them takes longer than the table saves.
_MOST_ADDED = 32
_MISSING, _ALL_MISSING = -1, repeat(-1)


class WordTable:
    """Holds the words of a vocabulary that are one token each.

    `read_words` calls the tokenizer, and returns the tokens of each word. `added` are the added
    tokens. With `only_plain`, the tokenizer reads all texts that are not printable ASCII.
    """

    def __init__(
        self,
        words: dict[str, int],
        *,
        added: list[str],
        only_plain: bool,
        lowercase: bool,
        read_words: Callable[[list[str]], list[list[int]]],
    ) -> None:
        self._words = words
        self._only_plain = only_plain
        self._lowercase = lowercase
        self._read_words = read_words
        # The tokenizer finds added tokens before it splits a text. It finds some of them whether
        # they are in upper or lower case.
        self._added = re.compile("|".join(map(re.escape, added)), re.IGNORECASE) if added else None

    def find(self, texts: Sequence[RowInput]) -> list[list[int] | None]:
        """Return the tokens of each text; `None` if the tokenizer must read the input."""
        found: list[list[int] | None] = []
        incomplete: list[tuple[list[str], list[int]]] = []
        for text in texts:
            words, tokens = self._split(text) if isinstance(text, str) else None, None
            if words is not None:
                tokens = list(map(self._words.get, words, _ALL_MISSING))
                missing = tokens.count(_MISSING)
                if missing > _MOST_OTHERS * len(words):
                    tokens = None
                elif missing:
                    incomplete.append((words, tokens))
            found.append(tokens)
        if incomplete:
            self._complete(incomplete)
        return found

    def _split(self, text: str) -> list[str] | None:
        """Return the words of a text; `None` if the tokenizer must read it."""
        if len(text) > _LONGEST_TEXT:
            return None
        if not _is_plain(text) and (self._only_plain or _CONTROLS.search(text)):
            return None
        if self._added is not None and self._added.search(text):
            return None
        if self._lowercase:
            # Only ASCII letters, because Python's rules for other letters differ.
            text = text.encode().lower().decode()
        for sign, spaced in _SPACED.items():
            if sign in text:
                text = text.replace(sign, spaced)
        return text.split()

    def _complete(self, texts: Sequence[tuple[list[str], list[int]]]) -> None:
        """Replace `_MISSING` by the tokens of the word, which the tokenizer reads in one call."""
        places = [
            [place for place, token in enumerate(tokens) if token == _MISSING]
            for _, tokens in texts
        ]
        others = list(
            dict.fromkeys(
                words[place]
                for (words, _), missing in zip(texts, places, strict=True)
                for place in missing
            )
        )
        read = dict(zip(others, self._read_words(others), strict=True))
        for (words, tokens), missing in zip(texts, places, strict=True):
            for place in reversed(missing):
                tokens[place : place + 1] = read[words[place]]


def read_word_table(
    source: str, read_words: Callable[[list[str]], list[list[int]]]
) -> WordTable | None:
    """Return the word table of a tokenizer file.

    Return `None` if the tokenizer differs too much from BERT's.
    """
    document = json.loads(source)
    model, normalizer = document["model"], document.get("normalizer") or {}
    splits = (document.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer"
    if model.get("type") != "WordPiece" or not splits:
        return None
    match normalizer.get("type"):
        case None:
            lowercase = False
        case "Lowercase":
            lowercase = True
        case "BertNormalizer":
            lowercase = bool(normalizer["lowercase"])
        case _:
            return None
    longest = min(_LONGEST_WORD, model.get("max_input_chars_per_word", _LONGEST_WORD))
    words = {
        word: number
        for word, number in model["vocab"].items()
        if len(word) <= longest and word.isascii() and (word.isalnum() or word in _SPACED)
    }
    tokens = document.get("added_tokens", [])
    added = [token["content"] for token in tokens]
    # The tokenizer removes accents and line breaks from these tokens and from texts. So a token
    # with an accent also matches other texts, and any token may appear in a text with accents.
    normalized = [token["content"] for token in tokens if token["normalized"]]
    if len(added) > _MOST_ADDED or not all(map(_is_plain, normalized)):
        return None
    return WordTable(
        words,
        added=added,
        only_plain=bool(normalized),
        lowercase=lowercase,
        read_words=read_words,
    )


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
