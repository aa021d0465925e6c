"""Makes texts of given lengths from words of real texts."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

_TEXTS = Path(__file__).parents[2] / "tests" / "parity" / "data" / "texts.txt"
EQUAL = 64
SHORTEST, LONGEST = 8, 256


class TextMaker:
    """Makes texts that no other call has made. Lengths are tokens of the demo's tokenizer."""

    def __init__(self, tokenizer: Path, *, seed: int) -> None:
        words = Tokenizer.from_file(str(tokenizer))
        words.no_padding()
        self._random = random.Random(seed)
        # With repetitions, so that frequent words are frequent.
        self._words = _TEXTS.read_text(encoding="utf-8").split()
        found = words.encode_batch(self._words, add_special_tokens=False)
        self._lengths = dict(zip(self._words, (len(each.ids) for each in found), strict=True))

    def equal(self, count: int) -> list[str]:
        """Return texts with `EQUAL` tokens each."""
        return [self._text(EQUAL) for _ in range(count)]

    def mixed(self, count: int) -> list[str]:
        """Return texts whose lengths have an even distribution of logarithms."""
        return [self._text(round(length)) for length in self._lengths_of(count)]

    def _lengths_of(self, count: int) -> Iterator[float]:
        low, high = math.log(SHORTEST), math.log(LONGEST)
        for _ in range(count):
            yield math.exp(self._random.uniform(low, high))

    def _text(self, length: int) -> str:
        chosen: list[str] = []
        left = length - 2  # the tokens before and after the text
        while left:
            word = self._random.choice(self._words)
            if self._lengths[word] <= left:
                chosen.append(word)
                left -= self._lengths[word]
        return " ".join(chosen)
