"""Divides texts that a guard judged into parts, which the playground colours."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from sluicegate.gateway.dialects.guards.route import Finding, GuardAnswer, GuardBody
from sluicegate.wire.guards import VERDICTS, Verdict

_MOST_FINDINGS = 200
_read_body = msgspec.json.Decoder(GuardBody).decode
_read_answer = msgspec.json.Decoder(GuardAnswer).decode


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a text. `action` is the strongest of its findings, or empty without one."""

    text: str
    action: str = ""
    labels: str = ""
    """What was found, such as `contacts: EMAIL 1.00`."""


class JudgedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text with its verdict."""

    verdict: Verdict
    parts: list[TextPart]


def judged_texts(body: bytes, answer: str) -> list[JudgedText]:
    """Return the texts of a request to a guard. Nothing if the answer is not that of a guard."""
    try:
        texts, results = _read_body(body).texts, _read_answer(answer).results
    except msgspec.DecodeError:
        return []
    return [
        JudgedText(verdict=one.verdict, parts=_parts(text, one.findings[:_MOST_FINDINGS]))
        for text, one in zip(texts, results, strict=False)
    ]


def _parts(text: str, findings: Sequence[Finding]) -> list[TextPart]:
    edges = {edge for each in findings for edge in (each.start, each.end)}
    bounds = sorted({0, len(text), *edges})
    return [_part(text, start, end, findings) for start, end in pairwise(bounds)]


def _part(text: str, start: int, end: int, findings: Sequence[Finding]) -> TextPart:
    found = [each for each in findings if each.start <= start and end <= each.end]
    return TextPart(
        text=text[start:end],
        action=max((each.action for each in found), key=VERDICTS.index, default=""),
        labels=", ".join(f"{each.detector}: {each.label} {each.score:.2f}" for each in found),
    )
