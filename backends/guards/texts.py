"""Looks for formats, patterns, words and length, without a model."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.guards.formats import find_format
from sluicegate.backends.guards.readable import ReadableText, all_folded, folded
from sluicegate.backends.guards.time_limit import TimeLimit
from sluicegate.backends.pipelines.windows import Span
from sluicegate.wire.guards import (
    AnyDetector,
    FormatDetector,
    LengthDetector,
    PatternDetector,
    WordDetector,
)
from sluicegate.wire.patterns import compile_pattern

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


def find_in_text(
    detector: AnyDetector, text: str, read: ReadableText, limit: TimeLimit
) -> Iterator[tuple[str, Span]]:
    """Yield the label and the span of each finding of a detector in a reading of a text.

    A detector that needs a model finds nothing here.

    Raises:
        ItemRefused: the detector's pattern is invalid, or the time is over.
    """
    if isinstance(detector, LengthDetector):
        if len(text) > detector.max_characters:
            yield "LENGTH", (detector.max_characters, len(text))
        return
    for label, span in _find(detector, read, limit):
        yield label, read.original(span)


def _find(
    detector: AnyDetector, read: ReadableText, limit: TimeLimit
) -> Iterator[tuple[str, Span]]:
    if isinstance(detector, FormatDetector):
        for name in detector.formats:
            for span in find_format(read.text, name, limit):
                yield name.upper(), span
    elif isinstance(detector, PatternDetector):
        for span in _matches(detector.pattern, read.text, limit):
            yield detector.label, span
    elif isinstance(detector, WordDetector):
        compared = folded(read.text)
        for span in _find_words(detector.words, compared.text, limit):
            yield detector.label, compared.original(span)


def work_of(detector: AnyDetector) -> int:
    """Return the characters or words of a detector itself, which add to the work on a text."""
    if isinstance(detector, WordDetector):
        return len(detector.words)
    return len(detector.pattern) if isinstance(detector, PatternDetector) else 0


def _matches(pattern: str, text: str, limit: TimeLimit) -> Iterator[Span]:
    for match in limit.each(compiled(pattern).finditer(text)):
        if match.start() < match.end():
            yield match.span()


@lru_cache(_MOST_PATTERNS)
def compiled(pattern: str) -> Any:  # Any: RE2 has no types
    """Return a compiled pattern.

    Raises:
        ItemRefused: the pattern is invalid.
    """
    try:
        return compile_pattern(pattern)
    except ValueError as error:
        detail = f"a pattern of the guard {error}; ask the operator to correct it"
        raise ItemRefused("guard_invalid", detail) from None


def _find_words(words: tuple[str, ...], text: str, limit: TimeLimit) -> Iterator[Span]:
    for word in limit.each(all_folded(words)):
        for start in limit.each(_places(word, text)):
            end = start + len(word)
            if _ends_between(text, start) and _ends_between(text, end):
                yield start, end


def _places(word: str, text: str) -> Iterator[int]:
    start = text.find(word)
    while start >= 0:
        yield start
        start = text.find(word, start + 1)


def _ends_between(text: str, place: int) -> bool:
    """Return whether a word may begin or end at a place."""
    if not 0 < place < len(text):
        return True
    beside = text[place - 1], text[place]
    return not all(each.isalnum() for each in beside) or any(map(_is_spaceless, beside))


def _is_spaceless(character: str) -> bool:
    code = ord(character)
    return any(first <= code < end for first, end in _SPACELESS)
