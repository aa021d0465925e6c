"""Divides texts that a guard judged into parts, which the playground colours."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from sluicegate.gateway.dialects.guards.route import Finding, GuardAnswer, GuardBody, GuardResult
from sluicegate.wire.guards import VERDICTS, Verdict

_MOST_FINDINGS = 200
_MOST_LABELS = 3
_read_body = msgspec.json.Decoder(GuardBody).decode
_read_answer = msgspec.json.Decoder(GuardAnswer).decode


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a text. `action` is the strongest of its findings, or empty without one."""

    text: str
    action: str = ""
    labels: str = ""
    """What was found, such as `contacts: EMAIL 1.00`: at most three findings, strongest first."""


class JudgedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text with its verdict."""

    verdict: Verdict
    parts: list[TextPart]
    marked: int
    """The number of findings that are marked: at most 200, strongest first."""
    findings: int


def judged_texts(body: bytes, answer: str) -> list[JudgedText]:
    """Return the judged texts of a request to a guard.

    The list is empty if the answer is not a guard's.
    """
    try:
        asked, results = _read_body(body), _read_answer(answer).results
    except msgspec.DecodeError:
        return []
    texts = ["".join(asked.texts)] if asked.pieces else asked.texts
    return [_judged(text, one) for text, one in zip(texts, results, strict=False)]


def _judged(text: str, result: GuardResult) -> JudgedText:
    strongest = sorted(result.findings, key=_strength, reverse=True)[:_MOST_FINDINGS]
    return JudgedText(
        verdict=result.verdict,
        parts=_parts(text, strongest),
        marked=len(strongest),
        findings=len(result.findings),
    )


def _strength(finding: Finding) -> int:
    return VERDICTS.index(finding.action)


def _parts(text: str, findings: Sequence[Finding]) -> list[TextPart]:
    edges = {edge for each in findings for edge in (each.start, each.end)}
    bounds = sorted({0, len(text), *edges})
    return [_part(text, start, end, findings) for start, end in pairwise(bounds)]


def _part(text: str, start: int, end: int, findings: Sequence[Finding]) -> TextPart:
    """Return a part of a text. `findings` are sorted, the strongest first."""
    found = [each for each in findings if each.start <= start and end <= each.end]
    return TextPart(
        text=text[start:end],
        action=found[0].action if found else "",
        labels=", ".join(f"{e.detector}: {e.label} {e.score:.2f}" for e in found[:_MOST_LABELS]),
    )
