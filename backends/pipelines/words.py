"""Splits texts into words as GLiNER and GLiNER2 do."""

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator

from sluicegate.backends.pipelines.windows import Span

# Letters and digits, which hyphens and underscores may join, or any other character that is no
# space.
_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
_ENDS = (".", "!", "?")
_ADDRESS = re.compile(r"[a-z0-9._%+-]+", re.IGNORECASE)
_DOMAIN = re.compile(r"@[a-z0-9.-]+\.[a-z]{2,}", re.IGNORECASE)
_LINK = re.compile(r"https?://\S+|www\.\S+", re.IGNORECASE)
_VISIBLE = re.compile(r"\S")


def split_words(text: str, most: int | None = None) -> tuple[list[Span], list[str]]:
    """Return the places of at most `most` words, in characters, and the words, as GLiNER does."""
    places = [match.span() for match in itertools.islice(_WORD.finditer(text), most)]
    return places, [text[start:end] for start, end in places]


def split_schema_words(text: str, most: int | None = None) -> tuple[list[Span], list[str]]:
    """Return the places of at most `most` words and the words, as GLiNER2 does.

    The words are in lower case. If the text has no end of a sentence, the last word is a full stop,
    whose place is after the text.
    """
    if not text.endswith(_ENDS):
        text += "."
    places = list(itertools.islice(_schema_words(text), most))
    return places, [text[start:end].lower() for start, end in places]


def _schema_words(text: str) -> Iterator[Span]:
    """Yield the place of each word of GLiNER2.

    Words are links, e-mail addresses, names after `@`, letters with their accents, which hyphens
    may join, and any other character that is no space. GLiNER2 has one pattern for all of them,
    which takes quadratic time for a long part of an address. Here, such a part is read once: `end`
    is where it ends, and `address` where the address with it ends, if it is one.
    """
    word, place, end, address = schema_word(), 0, 0, 0
    while (visible := _VISIBLE.search(text, place)) is not None:
        start = visible.start()
        if start >= end and (part := _ADDRESS.match(text, start)) is not None:
            end = part.end()
            domain = _DOMAIN.match(text, end)
            address = domain.end() if domain is not None else 0
        link = _LINK.match(text, start)
        if link is not None:
            place = link.end()
        elif start < end and address:
            place = address
        else:
            found = word.match(text, start)
            place = found.end() if found is not None else start + 1
        yield start, place


@functools.cache
def schema_word() -> re.Pattern[str]:
    """Return the pattern of words of GLiNER2 other than links and addresses.

    The first call examines all of Unicode, which takes about 0.2 seconds.
    """
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(each for each in characters if unicodedata.category(each).startswith("M"))
    letter = rf"[\w{marks}\u200c\u200d]"
    return re.compile(rf"@[a-z0-9_]+|{letter}+(?:[-_]{letter}+)*|\S", re.IGNORECASE)
