"""Looks for formats, patterns, words and length, without a model."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import re2

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.guards.formats import find_format
from sluicegate.backends.guards.readable import ReadableText, folded
from sluicegate.backends.pipelines.windows import Span
from sluicegate.wire.guards import (
    AnyDetector,
    FormatDetector,
    LengthDetector,
    PatternDetector,
    WordDetector,
)

# Scripts without spaces between words, whose words therefore may have letters beside them: Thai and
# Lao, Myanmar, Khmer, Japanese, and Chinese characters.
_SPACELESS: Final = (
    (0x0E00, 0x0F00),
    (0x1000, 0x10A0),
    (0x1780, 0x1800),
    (0x3040, 0x3100),
    (0x3400, 0xA000),
    (0xF900, 0xFB00),
    (0x20000, 0x33480),
)
_MOST_PATTERNS: Final = 4096


def find_in_text(detector: AnyDetector, text: ReadableText) -> Iterator[tuple[str, Span]]:
    """Yield the label and the span, in the original text, of each finding of a detector.

    A detector that needs a model finds nothing here.

    Raises:
        ItemRefused: the detector's pattern is invalid.
    """
    if isinstance(detector, FormatDetector):
        yield from _find_formats(detector, text)
    elif isinstance(detector, PatternDetector):
        yield from _find_pattern(detector, text)
    elif isinstance(detector, WordDetector):
        yield from _find_words(detector, text)
    elif isinstance(detector, LengthDetector) and len(text.text) > detector.max_characters:
        yield "LENGTH", text.original((detector.max_characters, len(text.text)))


def _find_formats(detector: FormatDetector, text: ReadableText) -> Iterator[tuple[str, Span]]:
    for name in detector.formats:
        for span in find_format(text.text, name):
            yield name.upper(), text.original(span)


def _find_pattern(detector: PatternDetector, text: ReadableText) -> Iterator[tuple[str, Span]]:
    for match in compiled(detector.pattern).finditer(text.text):
        if match.start() < match.end():
            yield detector.label, text.original(match.span())


@lru_cache(_MOST_PATTERNS)
def compiled(pattern: str) -> Any:  # Any: RE2 has no types
    """Return a compiled pattern.

    Raises:
        ItemRefused: the pattern is invalid.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        detail = f"a pattern of the guard is invalid ({error}); ask the operator to correct it"
        raise ItemRefused("guard_invalid", detail) from None


def same_letters(text: str) -> str:
    """Return a text as it is compared, without differences of case and of invisible characters."""
    return folded(text).text


def _find_words(detector: WordDetector, text: ReadableText) -> Iterator[tuple[str, Span]]:
    compared = folded(text.text)
    within = compared.text
    for word in map(same_letters, detector.words):
        start = within.find(word) if word else -1
        while start >= 0:
            end = start + len(word)
            if _ends_between(within, start) and _ends_between(within, end):
                yield detector.label, text.original(compared.original((start, end)))
            start = within.find(word, start + 1)


def _ends_between(text: str, place: int) -> bool:
    """Return whether a word may begin or end at a place."""
    if not 0 < place < len(text):
        return True
    beside = text[place - 1], text[place]
    return not all(each.isalnum() for each in beside) or any(map(_is_spaceless, beside))


def _is_spaceless(character: str) -> bool:
    code = ord(character)
    return any(first <= code < end for first, end in _SPACELESS)
