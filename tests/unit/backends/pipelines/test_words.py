"""Words are split as the packages `gliner` and `gliner2` split them."""

import random
import re
import sys
import unicodedata

import pytest

from sluicegate.backends.pipelines.words import split_schema_words, split_words

_MARKS = "".join(
    chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"
)
_LETTER = rf"[\w{_MARKS}\u200c\u200d]"
# The pattern of `gliner2` 2.1.0, in `processing/word_splitter.py`.
_REFERENCE = re.compile(
    rf"""(?:https?://[^\s]+|www\.[^\s]+)
        |[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{{2,}}
        |@[a-z0-9_]+
        |{_LETTER}+(?:[-_]{_LETTER}+)*
        |\S""",
    re.VERBOSE | re.IGNORECASE,
)
_PIECES = (
    *("a", "B", "7", ".", "..", "-", "_", "@", "@@", "%", "+", " ", "\n", "http://", "https://"),
    *("www.", "com", "org", "x.y", "\u00e9", "e\u0301", "\u0915\u094d\u200d", "\u017f", "\u212a"),
    *("\u0130", "\U0001f642", "!", "?", "\u3002", "\u4e2d", "it's", "co-op_x", "..a@b.cc"),
)


def test_words_are_letters_that_hyphens_join_or_single_characters() -> None:
    places, words = split_words("a well-known_name, -x 😀é!")

    assert words == ["a", "well-known_name", ",", "-", "x", "😀", "é", "!"]
    assert places[:2] == [(0, 1), (2, 17)]


@pytest.mark.parametrize("seed", range(20))
def test_words_of_a_schema_are_those_of_the_reference_pattern(seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(200):
        text = "".join(drawn.choices(_PIECES, k=drawn.randint(1, 12))) + "."

        places, words = split_schema_words(text)

        found = [(match.span(), match.group().lower()) for match in _REFERENCE.finditer(text)]
        assert list(zip(places, words, strict=True)) == found, text


def test_a_text_without_an_end_gets_a_full_stop() -> None:
    assert split_schema_words("to Ada@Mail.org") == (
        [(0, 2), (3, 15), (15, 16)],
        ["to", "ada@mail.org", "."],
    )
    assert split_schema_words("Who?") == ([(0, 3), (3, 4)], ["who", "?"])


@pytest.mark.parametrize("part", [".", "a.", "%", "a@", "@.", "a@b.", "-_"])
def test_long_parts_of_addresses_are_split_in_linear_time(part: str) -> None:
    places, _ = split_schema_words(part * 20_000)

    assert len(places) > 1
