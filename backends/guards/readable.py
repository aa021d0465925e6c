"""Shows texts as their readers see them, so that invisible characters hide nothing from detectors.

Compatibility characters become plain ones (NFKC, Unicode Standard Annex 15), digits of any script
become 0 to 9, and characters that are not displayed are left out. Tags (U+E0020 to U+E007E), which
can carry invisible instructions to a language model, become the ASCII characters they stand for.
"""

import unicodedata
from collections.abc import Sequence

import msgspec

from sluicegate.backends.pipelines.windows import Span

_TAGS = range(0xE0020, 0xE007F)
_TAG_BASE = 0xE0000
_HIDDEN_RANGES = ((0x180B, 0x1810), (0xFE00, 0xFE10), (0xE0100, 0xE01F0))
# Characters that are not displayed, but are not of the category `Cf`: those with the property
# `Default_Ignorable_Code_Point` of the Unicode Character Database.
_HIDDEN = frozenset(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0]
    + [code for first, end in _HIDDEN_RANGES for code in range(first, end)]
)


class ReadableText(msgspec.Struct, frozen=True):
    """Holds the readable characters of a text, and the place of each in the original text.

    Without `places`, both texts have the same characters.
    """

    text: str
    places: Sequence[int] | None = None

    def original(self, span: Span) -> Span:
        """Return the span of the original text that a span of `text` stands for."""
        start, end = span
        if self.places is None or start >= end:
            return span
        return self.places[start], self.places[end - 1] + 1


class _Table(dict[int, str]):
    """Maps the code of a character to its readable form, and remembers it."""

    def __init__(self, *, folds: bool) -> None:
        super().__init__()
        self._folds = folds

    def __missing__(self, code: int) -> str:
        found = _readable(code)
        if self._folds:
            found = unicodedata.normalize("NFKD", found.casefold())
        self[code] = found
        return found


_READABLE, _FOLDED = _Table(folds=False), _Table(folds=True)


def readable(text: str) -> ReadableText:
    """Return a text as its readers see it."""
    return ReadableText(text) if text.isascii() else _mapped(text, _READABLE)


def folded(text: str) -> ReadableText:
    """Return a readable text without differences of case, for comparison."""
    return _mapped(text, _FOLDED)


def _mapped(text: str, table: _Table) -> ReadableText:
    found = text.translate(table)
    if found == text:
        return ReadableText(text)
    places = [place for place, each in enumerate(text) for _ in table[ord(each)]]
    return ReadableText(found, places)


def _readable(code: int) -> str:
    if code in _TAGS:
        return chr(code - _TAG_BASE)
    each = chr(code)
    if code in _HIDDEN or unicodedata.category(each) == "Cf":
        return ""
    digit = unicodedata.decimal(each, None)
    return unicodedata.normalize("NFKC", each) if digit is None else str(digit)
