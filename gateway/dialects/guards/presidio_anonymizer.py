"""Replaces what an analyzer found in a text, as presidio-anonymizer 2.2.366 does."""

import hashlib
import os
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
from msgspec.structs import replace

from sluicegate.gateway.errors import InvalidRequest
from sluicegate.wire.protocol import MAX_ENTITIES
from sluicegate.wire.settings import unit

OPERATORS: Final = ("hash", "keep", "mask", "redact", "replace")
"""What can be done with an entity."""
_DEFAULT: Final = "DEFAULT"
_SALT_BYTES: Final = 32
_SPACES: Final = re.compile(" {1,256}")
# Each of many entities may become a replacement: this bounds the text that they make.
_SHORT = Annotated[str, msgspec.Meta(max_length=256)]


class PresidioSpan(msgspec.Struct, frozen=True, kw_only=True):
    """An entity in a text."""

    entity_type: str
    """What it is."""
    start: Annotated[int, msgspec.Meta(ge=0)]
    """The first code point of the span, counted from 0."""
    end: int
    """The code point after its last one."""
    score: float = 0.0
    """How sure the analyzer is, from 0 to 1."""


class PresidioOperator(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with the entities of a type."""

    type: str
    """`replace`, `redact`, `mask`, `hash` or `keep`."""
    new_value: _SHORT = ""
    """For `replace`: the new text, by default the type between `<` and `>`."""
    masking_char: Annotated[str, msgspec.Meta(max_length=1)] = "*"
    """For `mask`: the character that replaces others."""
    chars_to_mask: Annotated[int, unit("characters")] | None = None
    """For `mask`: how many characters to replace, by default all."""
    from_end: bool = False
    """For `mask`: whether to replace the last characters instead of the first ones."""
    hash_type: Literal["sha256", "sha512"] = "sha256"
    """For `hash`: the algorithm."""
    salt: Annotated[str, msgspec.Meta(min_length=16, max_length=256)] | None = None
    """For `hash`: what is added to the text, by default random bytes, so that equal texts get
    different hashes."""


class PresidioAnonymizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Replace entities in a text."""

    text: str
    """The text."""
    analyzer_results: Annotated[list[PresidioSpan], msgspec.Meta(max_length=MAX_ENTITIES)]
    """The entities, as `analyze` returned them."""
    anonymizers: dict[str, PresidioOperator] = {}
    """What to do with each type of entity. `DEFAULT` is for all other types."""


class PresidioAnonymized(msgspec.Struct, frozen=True, kw_only=True):
    """What was done with an entity."""

    start: int
    """Where the replacement begins in the new text."""
    end: int
    """Where it ends."""
    entity_type: str
    """What was replaced."""
    text: str
    """The replacement."""
    operator: str
    """What was done."""


class PresidioAnonymizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The new text."""

    text: str
    """The text with the replacements."""
    items: list[PresidioAnonymized]
    """The replacements, from the last to the first."""


def anonymize(body: PresidioAnonymizeBody) -> PresidioAnonymizeAnswer:
    """Return the text with replacements for the entities.

    Raises:
        InvalidRequest: a span is not in the text, or an operator is unknown.
    """
    text, operators = body.text, {_DEFAULT: PresidioOperator(type="replace")} | body.anonymizers
    for operator in operators.values():
        if operator.type not in OPERATORS:
            raise InvalidRequest(
                f"There is no operator `{operator.type[:80]}`; use {', '.join(OPERATORS)}."
            )
    for span in body.analyzer_results:
        if not span.start < span.end <= len(text):
            raise InvalidRequest(
                f"`analyzer_results` has a span from {span.start} to {span.end}, but the text has"
                f" {len(text)} characters; send the text that was analyzed."
            )
    parts, items = list[str](), list[PresidioAnonymized]()
    reached = length = 0
    for span in _resolved(text, body.analyzer_results):
        operator = operators.get(span.entity_type, operators[_DEFAULT])
        new = _operated(operator, text[span.start : span.end], span.entity_type)
        start = length + span.start - reached
        parts += [text[reached : span.start], new]
        reached, length = span.end, start + len(new)
        items.append(
            PresidioAnonymized(
                start=start,
                end=length,
                entity_type=span.entity_type,
                text=new,
                operator=operator.type,
            )
        )
    return PresidioAnonymizeAnswer(text="".join([*parts, text[reached:]]), items=items[::-1])


def _resolved(text: str, spans: Iterable[PresidioSpan]) -> list[PresidioSpan]:
    """Return spans in order and without overlaps.

    Joins spans of one type if they overlap or only spaces are between them. Drops a span inside
    another. Of two overlapping spans, the first ends where the second begins.
    """
    joined = list[PresidioSpan]()
    for one in sorted(spans, key=lambda one: (one.entity_type, one.start)):
        last = joined[-1] if joined else None
        if last is None or one.entity_type != last.entity_type or not _touch(text, last, one):
            joined.append(one)
        else:
            ends, scores = (last.end, one.end), (last.score, one.score)
            joined[-1] = replace(last, end=max(ends), score=max(scores))
    kept = list[PresidioSpan]()
    for one in sorted(joined, key=lambda one: (one.start, -one.end, -one.score)):
        if not kept or one.end > kept[-1].end:
            kept.append(one)
    return [
        replace(one, end=min(one.end, following.start))
        for one, following in pairwise(
            [*kept, PresidioSpan(entity_type="", start=len(text), end=0)]
        )
    ]


def _touch(text: str, one: PresidioSpan, following: PresidioSpan) -> bool:
    if following.start < one.end:
        return True
    return _SPACES.fullmatch(text, one.end, following.start) is not None


def _operated(operator: PresidioOperator, found: str, entity_type: str) -> str:
    """Return the replacement for an entity."""
    match operator.type:
        case "replace":
            return operator.new_value or f"<{entity_type}>"
        case "redact":
            return ""
        case "mask":
            asked = len(found) if operator.chars_to_mask is None else operator.chars_to_mask
            count = min(max(asked, 0), len(found))
            masked, rest = operator.masking_char * count, len(found) - count
            return found[:rest] + masked if operator.from_end else masked + found[count:]
        case "hash":
            salt = os.urandom(_SALT_BYTES) if operator.salt is None else operator.salt.encode()
            return hashlib.new(operator.hash_type, found.encode() + salt).hexdigest()
        case _:
            return found
