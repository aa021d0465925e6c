"""Shows texts as their readers see them, so that invisible characters hide nothing from detectors.

Compatibility characters become plain ones (NFKC, Unicode Standard Annex 15), digits of any script
become 0 to 9, and characters that are not displayed are left out, like marks that cross out or
enclose a letter. Tags (U+E0020 to U+E007E), which can carry invisible instructions to a language
model, become the ASCII characters they stand for. As people do not see tags, a text with tags is
also read without them.

What is left out may stand in a word or between two words. Tags, and signs such as letters in
squares, may belong to the word beside them or not. These places are the *cuts* of a reading. Words
can begin or end there. For other detectors, a reading with cuts is followed by a copy with spaces
at all of them.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.pipelines.windows import Span
from sluicegate.wire.guards import PLAIN, TAGS

_SPACES: Final = re.compile(r"\s+")
_WIDE_SPACE: Final = re.compile(r"\s\s|[^\S ]")
# What stands for a letter, but is not its compatibility character.
_STYLED: Final = re.compile(
    "(?:(?:CROSSED )?NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER|LATIN LETTER SMALL CAPITAL"
    "|REGIONAL INDICATOR SYMBOL LETTER) ([A-Z])"
)
# Categories of letters and digits that may belong to the word beside them or not.
_SIGNS: Final = frozenset(("Lm", "No", "So"))
_OVERLAY: Final = 1  # the combining class of marks over the whole letter
_BLANK: Final = 0x2800  # Braille without a dot
# WordPiece reads a word with a character that it does not know, or of more than 100 characters, as
# one unknown token. Emoji, signs and other scripts beside Latin letters must not hide their word.
# Each pair is the first code of a range of such characters, and the code after its last one.
# Letters that are Latin ones with accents are not in these ranges.
_STRANGE: Final = np.array(
    [
        *(0xA2, 0xAA, 0xAC, 0xAD, 0xAE, 0xB2, 0xB4, 0xB5, 0xB8, 0xB9, 0xD7, 0xD8, 0xF7, 0xF8),
        *(0x138, 0x139, 0x166, 0x168, 0x180, 0x1A0, 0x1A2, 0x1AF, 0x1B1, 0x1CD, 0x1DD, 0x1DE),
        *(
            0x1E4,
            0x1E6,
            0x1EE,
            0x1F0,
            0x1F6,
            0x1F8,
            0x21C,
            0x21E,
            0x220,
            0x226,
            0x234,
            0x300,
            0x370,
            0x1AB0,
        ),
        *(0x1ABF, 0x1DC0, 0x1DF6, 0x1DFC, 0x1E9C, 0x1EA0, 0x1EFA, 0x2000),
        *(0x2044, 0x2045, 0x2052, 0x2053, 0x2070, 0x20D0, 0x20F1, 0x3000, 0x3004, 0x3008),
        *(0x3012, 0x3014, 0x3020, 0x302A, 0x302E, 0x3030, 0x3031, 0x303D, 0x303E, 0xFE20),
        *(0xFE30, 0x110000),
    ]
)
_LATIN: Final = np.array([0x30, 0x3A, 0x41, 0x5B, 0x61, 0x7B, 0xC0, 0x250, 0x1E00, 0x1F00])
# The marks of letters, in ranges as above: they belong to the character before them.
_MARKS: Final = np.array(
    [0x300, 0x370, 0x1AB0, 0x1ABF, 0x1DC0, 0x1DF6, 0x1DFC, 0x1E00, 0x20D0, 0x20F1, 0xFE20, 0xFE30]
)
# WordPiece counts characters in their canonical decomposition (NFD), which makes up to 4 of one.
_LONG_WORD: Final = re.compile(r"[^\s!-/:-@\[-`{-~\u2000-\u206f\u3000-\u303f]{26,}")
_MOST_WORD: Final = 100
_WORD_PART: Final = 25
_TAGS = range(0xE0020, 0xE007F)
_TAG_BASE = 0xE0000
_HIDDEN_RANGES = ((0x180B, 0x1810), (0xFE00, 0xFE10), (0xFFF0, 0xFFF9), (0xE0000, 0xE1000))
# Characters that are not displayed, but are not of the category `Cf`: those with the property
# `Default_Ignorable_Code_Point` of the Unicode Character Database, assigned or not.
_HIDDEN = frozenset(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0]
    + [code for first, end in _HIDDEN_RANGES for code in range(first, end)]
)
# NFKC makes up to 18 characters of one. Texts that grow more than so would cost more rows than the
# gateway counted.
_MOST_GROWTH: Final = 2
_FREE_GROWTH: Final = 100
_MOST_FOLDED: Final = 128


class ReadableText(msgspec.Struct, frozen=True):
    """Holds the readable characters of a text, and the place of each in the original text.

    Without `places`, both texts have the same characters. `cuts` are the places in `text` before
    which a word may end without white space.
    """

    text: str
    places: Sequence[int] | None = None
    cuts: Sequence[int] = ()

    def original(self, span: Span) -> Span:
        """Return the span of the original text that a span of `text` stands for."""
        start, end = span
        if self.places is None or start >= end:
            return span
        return self.places[start], self.places[end - 1] + 1


class _Table(dict[int, str]):
    """Maps the code of a character to its readable form, and remembers it."""

    def __init__(self, *, folds: bool = False, has_tags: bool = True) -> None:
        super().__init__()
        self._folds = folds
        self._has_tags = has_tags

    def __missing__(self, code: int) -> str:
        found = _readable(code) if self._has_tags or code not in _TAGS else ""
        if self._folds:
            found = unicodedata.normalize("NFKD", found.casefold())
        self[code] = found
        return found


_READABLE, _UNTAGGED, _FOLDED = _Table(), _Table(has_tags=False), _Table(folds=True)


def readings(text: str) -> list[ReadableText]:
    """Return a text as its readers see it: with tags as letters and, if it has tags, without.

    Each reading with cuts is followed by one with spaces there.

    Raises:
        ItemRefused: the readable text is much longer than the text.
    """
    if PLAIN.fullmatch(text):
        return [ReadableText(text)]
    tables = (_READABLE, _UNTAGGED) if TAGS.search(text) else (_READABLE,)
    found = [_with_cuts(text, _mapped(text, table)) for table in tables]
    if len(found[0].text) > _MOST_GROWTH * len(text) + _FREE_GROWTH:
        raise ItemRefused(
            "input_too_long",
            "the text has many characters that stand for several others; send it in parts",
        )
    parted = [_with_spaces(one, np.array(one.cuts)) if one.cuts else None for one in found]
    return [one for pair in zip(found, parted, strict=True) for one in pair if one is not None]


def _with_cuts(text: str, read: ReadableText) -> ReadableText:
    if read.places is None:
        return read
    kinds = {each: _kind(each) for each in set(text)}
    cuts = [
        place
        for place, (first, second) in enumerate(pairwise(read.places), 1)
        if (second - first > 1 or kinds[text[first]] != kinds[text[second]])
        and _is_of_word(read.text[place - 1])
        and _is_of_word(read.text[place])
    ]
    return ReadableText(read.text, read.places, cuts)


def _kind(character: str) -> Literal["tag", "sign", "plain"]:
    if ord(character) in _TAGS:
        return "tag"
    is_sign = unicodedata.category(character) in _SIGNS
    return "sign" if is_sign and _READABLE[ord(character)] != character else "plain"


def _is_of_word(character: str) -> bool:
    """Return whether a character is a letter, a mark or a number."""
    return unicodedata.category(character)[0] in "LMN"


def model_readings(read: Sequence[ReadableText]) -> list[ReadableText]:
    """Return the readings that have something to see, with spaces where words hide from models."""
    return [_spaced(one) for one in read if one.text.strip()]


def _spaced(read: ReadableText) -> ReadableText:
    text = read.text
    cuts = [
        place
        for word in _LONG_WORD.finditer(text)
        if len(unicodedata.normalize("NFD", word[0])) > _MOST_WORD
        for place in range(word.start() + _WORD_PART, word.end(), _WORD_PART)
    ]
    if text.isascii() and not cuts:
        return read
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    before = np.sort(np.concatenate([_edges(codes), np.array(cuts, np.int64)]))
    return _with_spaces(read, before) if len(before) else read


def _with_spaces(read: ReadableText, before: NDArray[np.int64]) -> ReadableText:
    """Return a reading with a space before each of these places, none of which is the first."""
    codes = np.frombuffer(read.text.encode("utf-32-le"), np.uint32)
    spaced = np.insert(codes, before, ord(" ")).tobytes().decode("utf-32-le")
    known = np.arange(len(codes)) if read.places is None else np.asarray(read.places)
    return ReadableText(spaced, np.insert(known, before, known[before - 1]).tolist())


def _edges(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the places between strange characters and Latin letters or digits."""
    is_strange, is_latin = _is_within(_STRANGE, codes), _is_within(_LATIN, codes)
    # A mark belongs to the character before it.
    numbers = np.where(_is_within(_MARKS, codes), 0, np.arange(len(codes)))
    base = np.maximum.accumulate(numbers)
    kind = np.where(is_strange, 2, is_latin)[base]
    return np.flatnonzero((kind[:-1] | kind[1:]) == 3) + 1  # noqa: PLR2004 - one of each kind


def _is_within(ranges: NDArray[np.int64], codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    within: NDArray[np.bool_] = np.searchsorted(ranges, codes, side="right") % 2 == 1
    return within


def folded(text: str) -> ReadableText:
    """Return a text for comparison: readable, without differences of case and of white space."""
    found = _mapped(text, _FOLDED)
    if not _WIDE_SPACE.search(found.text):
        return found
    letters, places = [], []
    end = 0
    for run in _SPACES.finditer(found.text):
        letters += [found.text[end : run.start()], " "]
        places += [*range(end, run.start() + 1)]
        end = run.end()
    places += range(end, len(found.text))
    originals = places if found.places is None else [found.places[place] for place in places]
    return ReadableText("".join([*letters, found.text[end:]]), originals)


def same_letters(text: str) -> str:
    """Return a text as it is compared, without white space around it."""
    return folded(text).text.strip()


@lru_cache(_MOST_FOLDED)
def all_folded(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts as they are compared, without texts that have no readable character."""
    return tuple(filter(None, map(same_letters, texts)))


def _mapped(text: str, table: _Table) -> ReadableText:
    found = text.translate(table)
    if found == text or (text.isascii() and len(found) == len(text)):
        return ReadableText(found)
    places = [place for place, each in enumerate(text) for _ in table[ord(each)]]
    return ReadableText(found, places)


def _readable(code: int) -> str:
    if code in _TAGS:
        return chr(code - _TAG_BASE)
    each = chr(code)
    if each in "\t\n\r":
        return each
    category = unicodedata.category(each)
    if code in _HIDDEN or category in ("Cc", "Cf", "Me") or unicodedata.combining(each) == _OVERLAY:
        return ""
    if category in ("Zs", "Zl", "Zp") or code == _BLANK:
        return " "
    digit = unicodedata.digit(each, None)
    if digit is not None:
        return str(digit)
    styled = _STYLED.fullmatch(unicodedata.name(each, ""))
    return styled[1] if styled else unicodedata.normalize("NFKC", each)
