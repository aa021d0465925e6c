"""Defines `POST /v1/guard/{name}`, which looks at texts with a guard of the document."""

import contextlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, zip_longest
from random import random
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.dialects.guards.redaction import MarkedSpan, Placeholders, settled
from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.telemetry.guard_decisions import (
    MOST_CHARACTERS,
    GuardDecision,
    SeenFinding,
)
from sluicegate.gateway.telemetry.guard_verdicts import (
    FAILED_TEXTS,
    FINDINGS,
    TEXTS,
    GuardVerdicts,
)
from sluicegate.gateway.types import (
    Answer,
    InferenceRequest,
    ItemOutcome,
    ModelName,
    RequestId,
    Usage,
)
from sluicegate.wire.guards import Action, AnyDetector, DetectorScores, GuardConfig, Verdict
from sluicegate.wire.protocol import GuardParameters, Task

_encode = msgspec.msgpack.Encoder(order="sorted").encode
# The answer has the text with placeholders, the originals, and the names of detectors.
GROWTH = 3.0


class GuardBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Look at texts with a guard."""

    input: str | list[str]
    """A text, or a list of texts."""
    pieces: bool = False
    """Whether the texts are the pieces so far of one text that grows, such as a streamed answer.
    The guard then looks at the whole text, and has one result."""
    restore: bool = False
    """Whether the answer has the original text of each placeholder. It must be false with
    `pieces`."""

    @property
    def texts(self) -> list[str]:
        """All texts, or all pieces."""
        return self.input if isinstance(self.input, list) else [self.input]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding of a detector."""

    detector: str
    """The name of the detector."""
    action: Action
    """What follows from it."""
    label: str
    """What was found."""
    score: float
    """How sure the detector is, from 0 to 1."""
    start: int
    """The first code point of the span, counted from 0."""
    end: int
    """The code point after its last one."""
    model: str = ""
    """The model that found it, if any."""
    revision: str = ""
    """The revision of this model."""


class GuardFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a text could not be looked at completely."""

    code: str
    """The code of the error."""
    detail: str
    """What was wrong, and what to do."""


class GuardResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict about a text."""

    verdict: Verdict
    """What to do with the text: the strongest action of its findings, or `allow` without one."""
    findings: list[Finding]
    """What detectors found, in the order of the text."""
    text: str = ""
    """With `redact`: the text with placeholders for the spans to redact."""
    message: str = ""
    """If findings block the text: what the guard's configuration says about it."""
    blocked_from: int | None = None
    """With `pieces`, if the text is blocked: the first piece that has a part of a finding that
    blocks, counted from 0."""
    holdback: int | None = None
    """With `pieces`, if the text is not blocked: how many code points at the end of `text`, or of
    the pieces if nothing is redacted, must not be sent before the next piece is known. If there is
    no further piece, all may be sent."""
    error: GuardFailure | None = None
    """If the text could not be looked at completely, why. The guard's `on_error` is then the
    verdict, unless a finding blocks the text."""


class GuardAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdicts about all texts."""

    guard: str
    """The name of the guard."""
    model: str
    """The model that ran the detectors."""
    revision: str
    """Its revision."""
    results: list[GuardResult]
    """A verdict for each text."""
    placeholders: dict[str, str] = {}
    """With `restore`: the original text of each placeholder."""
    usage: Usage
    """What the request used."""


_read = msgspec.json.Decoder(GuardResult).decode
# Findings that operators are shown of a decision.
_MOST_SHOWN = 3


class GuardedTexts(msgspec.Struct, frozen=True):
    """Holds texts and the guard that looks at them."""

    name: str
    guard: GuardConfig
    texts: list[str]
    restore: bool = False
    growing: bool = False
    """Whether each text may be the beginning of a longer one. Then it has placeholders of its own,
    and the verdict about it says how much of it to hold back."""
    with_scores: ClassVar[bool] = True
    """Whether decisions about the texts are sampled, with scores."""

    def items(self) -> list[Any]:
        """Return the texts."""
        return self.texts

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request. Each text has a verdict of its own, and none is truncated."""
        guard = self.guard
        parameters = GuardParameters(
            detectors=guard.detectors,
            allow=guard.allow,
            overlap=guard.overlap,
            with_scores=self.with_scores,
        )
        return InferenceRequest(
            task=Task.GUARD,
            model=ModelName(guard.model),
            parameters=_encode(parameters),
            items=tuple(map(_encode, self.texts)),
            continue_on_error=True,
            truncate=False,
        )

    def judge(self, answer: Answer) -> tuple[list[GuardResult], dict[str, str]]:
        """Return the verdict about each text, and the original text of each placeholder."""
        placeholders = Placeholders(self.texts)
        results = [
            self._result(text, outcome, placeholders)
            for text, outcome in zip(self.texts, answer.outcomes, strict=True)
        ]
        return results, placeholders.originals

    def rendered(self, found: Any, results: Sequence[GuardResult], answer: Answer) -> Rendered:
        """Return `found` as the answer of a hook, with the verdicts that metrics count.

        `results` are the verdicts about all texts in `answer`, and about what is no text.
        """
        return Rendered(JSON, msgspec.json.encode(found), self._verdicts(results, answer))

    def _verdicts(self, results: Sequence[GuardResult], answer: Answer) -> GuardVerdicts:
        name, revision = self.name, answer.model.info.revision
        found = Counter([one.verdict for one in results])
        findings = Counter(
            [(each.detector, each.action) for one in results for each in one.findings]
        )
        counts = [(TEXTS(name, verdict), count) for verdict, count in found.items()]
        counts += [(FINDINGS(name, *labels), count) for labels, count in findings.items()]
        if failed := sum(one.error is not None for one in results):
            counts.append((FAILED_TEXTS(name), failed))
        # What is no text, such as an image, has only a verdict.
        judged = [*zip_longest(results, self.texts, answer.outcomes)]
        # One text of each verdict, from anywhere: many chats begin with the same texts.
        start = int(random() * len(judged))  # noqa: S311 - no secret
        sampled = {
            (one[0].verdict, one[0].error is None): one for one in judged[start:] + judged[:start]
        }
        decisions = [_decision(*one, revision) for one in sampled.values()]
        return GuardVerdicts(counts=tuple(counts), name=name, decisions=decisions)

    def _result(self, text: str, outcome: ItemOutcome, placeholders: Placeholders) -> GuardResult:
        if outcome.failure is not None:
            error = GuardFailure(code=outcome.failure.code, detail=outcome.failure.detail)
            result = GuardResult(verdict=self.guard.on_error, findings=[], error=error)
        else:
            result = _read(outcome.result)
        if result.verdict == "block":
            return replace(result, message=self.guard.message if result.findings else "")
        spans = [
            MarkedSpan(one.start, one.end, one.label)
            for one in result.findings
            if one.action == "redact"
        ]
        names = Placeholders([text], growing=True) if self.growing else placeholders
        if result.verdict == "redact":
            result = replace(result, text=names.redact(text, spans))
        if self.growing:
            end = settled(len(text), spans, self.guard.holdback)
            sent = names.redact(text[:end], [one for one in spans if one.end <= end])
            result = replace(result, holdback=len(result.text or text) - len(sent))
        return result


def flagging(detectors: Sequence[AnyDetector]) -> tuple[AnyDetector, ...]:
    """Return detectors that only flag, so that the whole item fails if one of them fails."""
    return tuple([replace(one, action="flag") for one in detectors])


class _Scored(msgspec.Struct, frozen=True):
    scores: dict[str, DetectorScores] | None = None


_read_scores = msgspec.json.Decoder(_Scored).decode


def _decision(
    result: GuardResult, text: str | None, outcome: ItemOutcome | None, revision: str
) -> GuardDecision:
    scores, text = None, text or ""
    if result.error is None and outcome is not None:
        with contextlib.suppress(msgspec.MsgspecError):  # of a backend of another version
            scores = _read_scores(outcome.result).scores
    return GuardDecision(
        verdict=result.verdict,
        findings=[
            SeenFinding(
                detector=one.detector,
                label=one.label,
                score=one.score,
                length=one.end - one.start,
            )
            for one in result.findings[:_MOST_SHOWN]
        ],
        scores=scores,
        error="" if result.error is None else result.error.code,
        revision=revision,
        length=len(text),
        text=text[:MOST_CHARACTERS],
    )


def guard_of(source: BodySource | Runtime, name: str) -> GuardConfig:
    """Return a guard of the configuration document.

    Raises:
        NotFound: the document has no such guard.
    """
    found = source.document.guards.get(name)
    if found is None:
        raise NotFound(f"There is no guard `{name[:80]}`; the operator's configuration names them.")
    return found


class _Asked(GuardedTexts, frozen=True):
    pieces: Sequence[str] = ()
    """Those of the only text, if it was sent in pieces."""


class GuardRoute(InferenceRoute):
    """Serves `POST /v1/guard/{name}`."""

    path = "/v1/guard/{name}"
    task = Task.GUARD
    answer_growth = GROWTH
    answers_failures = True
    _decode = BodyDecoder(GuardBody)

    @override
    def decode(self, source: BodySource) -> _Asked:
        name = source.parameters["name"]
        guard, body = guard_of(source, name), self._decode(source.raw)
        if not body.pieces:
            return _Asked(name, guard, body.texts, body.restore)
        if body.restore or not body.texts:
            raise InvalidRequest("`pieces` needs a text in `input`, and no `restore`.")
        return _Asked(name, guard, ["".join(body.texts)], growing=True, pieces=body.texts)

    @override
    def encode(self, body: _Asked, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        results, originals = body.judge(answer)
        if body.pieces and results[0].verdict == "block":
            first = _blocked_from(body.pieces, results[0].findings)
            results = [replace(results[0], blocked_from=first)]
        info = answer.model.info
        found = GuardAnswer(
            guard=body.name,
            model=info.name,
            revision=info.revision,
            results=results,
            placeholders=originals if body.restore else {},
            usage=usage,
        )
        return body.rendered(found, results, answer)


def _blocked_from(pieces: Sequence[str], findings: Sequence[Finding]) -> int:
    """Return the first piece that has a part of a finding that blocks."""
    start = min((one.start for one in findings if one.action == "block"), default=0)
    return min(bisect_right([*accumulate(map(len, pieces))], start), len(pieces) - 1)
