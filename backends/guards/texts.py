"""Looks for formats, patterns, words and length, without a model."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
_MOST_WORD_LISTS: Final = 128


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
        for span in _find_words(detector.words, read, limit):
            yield detector.label, span


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


def _find_words(words: tuple[str, ...], read: ReadableText, limit: TimeLimit) -> Iterator[Span]:
    """Yield the spans of words. Between the words of a phrase is white space or a cut."""
    compared = folded(read.text)
    text = compared.text.replace(" ", "")
    is_space = np.frombuffer(compared.text.encode("utf-32-le"), np.uint32) == ord(" ")
    places, gaps = np.flatnonzero(~is_space), _without_spaces(np.flatnonzero(is_space))
    known = places if compared.places is None else np.asarray(compared.places)[places]
    breaks = {*gaps, *np.searchsorted(known, read.cuts).tolist()}
    for letters, inner in limit.each(_phrases(words)):
        for start in limit.each(_places(letters, text)):
            end = start + len(letters)
            within = gaps[bisect_right(gaps, start) : bisect_left(gaps, end)]
            expected = {start + place for place in inner}
            if (
                expected.issuperset(within)
                and breaks.issuperset(expected)
                and all(place in breaks or _ends_between(text, place) for place in (start, end))
            ):
                yield compared.original((int(places[start]), int(places[end - 1]) + 1))


@lru_cache(_MOST_WORD_LISTS)
def _phrases(words: tuple[str, ...]) -> list[tuple[str, list[int]]]:
    """Return the letters of each phrase, and where its spaces were among them."""
    return [
        (
            phrase.replace(" ", ""),
            _without_spaces(np.array([at for at, each in enumerate(phrase) if each == " "])),
        )
        for phrase in all_folded(words)
    ]


def _without_spaces(spaces: NDArray[np.int64]) -> list[int]:
    """Return where these places of spaces are after the spaces were removed."""
    found: list[int] = (spaces - np.arange(len(spaces))).tolist()
    return found


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
