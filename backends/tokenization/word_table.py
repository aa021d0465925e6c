"""Tokenizes plain ASCII texts by looking up their words in the vocabulary.

A WordPiece tokenizer of the BERT family splits such a text at spaces and around punctuation. A word
that is in its vocabulary becomes one token. A look-up takes a sixth of the tokenizer's time.
`tests/unit/backends/tokenization/test_word_table.py` checks that the look-up and the tokenizer give
the same tokens.
"""

import json
import math
import re
from collections.abc import Callable

# How BERT's pre-tokenizer splits printable ASCII: runs of letters and digits, or one other sign.
_PARTS = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9 ]")
# The tokenizer treats a longer word as unknown, even if it is in the vocabulary.
_LONGEST_WORD = 100
# The look-up holds the GIL, so longer texts are left to the tokenizer, which releases it.
_LONGEST_TEXT = 4096
# The share of words that may be missing in the table.
_MOST_OTHERS = 1 / 4
# With more added tokens, searching for them takes longer than the table saves.
_MOST_ADDED = 32


class WordTable:
    """Holds the words of a vocabulary that are one token each.

    `read_words` calls the tokenizer, and returns the tokens of each word.
    """

    def __init__(
        self,
        words: dict[str, int],
        *,
        added: list[str],
        lowercase: bool,
        read_words: Callable[[list[str]], list[list[int]]],
    ) -> None:
        self._words = words
        self._lowercase = lowercase
        self._read_words = read_words
        # The tokenizer finds added tokens before it splits a text. It finds some of them whether
        # they are in upper or lower case.
        self._added = re.compile("|".join(map(re.escape, added)), re.IGNORECASE) if added else None

    def find(self, text: str, *, most: float = math.inf) -> list[int] | None:
        """Return the tokens of a text; `None` if the tokenizer must read it.

        The result is also `None` for a text with more than `most` tokens.
        """
        if len(text) > _LONGEST_TEXT or not (text.isascii() and text.isprintable()):
            return None
        if self._added is not None and self._added.search(text):
            return None
        parts = _PARTS.findall(text.lower() if self._lowercase else text)
        if len(parts) > most:
            return None
        try:
            return [self._words[part] for part in parts]
        except KeyError:
            tokens = self._find_others(parts)
            return None if tokens is None or len(tokens) > most else tokens

    def _find_others(self, parts: list[str]) -> list[int] | None:
        """Return the tokens of all words; the tokenizer reads words that the table lacks."""
        others = [part for part in parts if part not in self._words]
        if len(others) > _MOST_OTHERS * len(parts):
            return None
        others = list(dict.fromkeys(others))
        read = dict(zip(others, self._read_words(others), strict=True))
        tokens: list[int] = []
        for part in parts:
            number = self._words.get(part)
            tokens += read[part] if number is None else (number,)
        return tokens


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
        if len(word) <= longest and _PARTS.fullmatch(word)
    }
    tokens = document.get("added_tokens", [])
    added = [token["content"] for token in tokens]
    # A normalized token with an accent also matches a text without the accent.
    reads_other_texts = any(t["normalized"] and not t["content"].isascii() for t in tokens)
    if len(added) > _MOST_ADDED or reads_other_texts:
        return None
    return WordTable(words, added=added, lowercase=lowercase, read_words=read_words)
