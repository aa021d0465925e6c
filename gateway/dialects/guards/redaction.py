"""Replaces spans of texts by placeholders that can be replaced by the spans again."""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import count
from typing import NamedTuple

_NOT_IN_NAMES = re.compile("[^A-Z0-9]+")
PLACEHOLDER = re.compile("<[A-Z0-9_]+>")


class MarkedSpan(NamedTuple):
    """Holds a span of a text, in code points, and what it is."""

    start: int
    end: int
    label: str


class Placeholders:
    """Makes placeholders, such as `<PERSON_1>`, for the texts of one request.

    Equal spans with the same label have the same placeholder. No placeholder occurs in `texts`, so
    that replacing the placeholders restores the texts.

    The placeholders of a `growing` text do not depend on what follows. They may occur in it.
    """

    def __init__(self, texts: Sequence[str], *, growing: bool = False) -> None:
        self._texts = texts
        self._growing = growing
        self._names: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, count[int]] = {}

    @property
    def originals(self) -> dict[str, str]:
        """The original text of each placeholder."""
        return {name: original for (_, original), name in self._names.items()}

    @cached_property
    def _taken(self) -> dict[str, int]:
        """What looks like a placeholder in the texts, and the place from which it is taken."""
        found = [match for text in self._texts for match in PLACEHOLDER.finditer(text)]
        return {one[0]: one.start() if self._growing else -1 for one in reversed(found)}

    def redact(self, text: str, spans: Iterable[MarkedSpan]) -> str:
        """Return a text with placeholders for `spans`. Overlapping spans are one span."""
        parts, reached = [], 0
        for start, end, label in _merged(spans):
            parts += [text[reached:start], self._name(label, text[start:end], start)]
            reached = end
        return "".join([*parts, text[reached:]])

    def _name(self, label: str, original: str, place: int) -> str:
        kind = _NOT_IN_NAMES.sub("_", label.upper()).strip("_") or "TEXT"
        found = self._names.get((kind, original))
        if found is None:
            numbers = self._numbers.setdefault(kind, count(1))
            names = map(f"<{kind}_{{}}>".format, numbers)
            found = next(name for name in names if self._taken.get(name, place) >= place)
            self._names[kind, original] = found
        return found


def settled(length: int, spans: Iterable[MarkedSpan], holdback: int | None) -> int:
    """Return where the part of a growing text ends that may be sent before more text is known.

    The last `holdback` code points are not sent, by default all. Neither is a span that reaches
    into them, as it may grow.
    """
    end = 0 if holdback is None else max(0, length - holdback)
    for span in reversed(_merged(spans)):
        if span.start < end <= span.end:
            end = span.start
    return end


def _merged(spans: Iterable[MarkedSpan]) -> list[MarkedSpan]:
    """Return spans without overlaps, in order. The label of the longest of several is kept."""
    merged: list[MarkedSpan] = []
    longest = 0
    for span in sorted(span for span in spans if span.start < span.end):
        length = span.end - span.start
        if not merged or span.start >= merged[-1].end:
            merged.append(span)
            longest = length
            continue
        last = merged[-1]
        label = span.label if length > longest else last.label
        longest = max(length, longest)
        merged[-1] = MarkedSpan(last.start, max(last.end, span.end), label)
    return merged
