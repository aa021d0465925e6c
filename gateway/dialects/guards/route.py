"""Defines `POST /v1/guard/{name}`, which looks at texts with a guard of the document."""

from typing import Any

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.dialects.guards.redaction import MarkedSpan, Placeholders
from sluicegate.gateway.errors import NotFound
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.types import (
    Answer,
    InferenceRequest,
    ItemOutcome,
    ModelName,
    RequestId,
    Usage,
)
from sluicegate.wire.guards import Action, GuardConfig, Verdict
from sluicegate.wire.protocol import GuardParameters, Task

_encode = msgspec.msgpack.Encoder(order="sorted").encode
# The answer has the text with placeholders, the originals, and the names of detectors.
GROWTH = 3.0


class GuardBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Look at texts with a guard."""

    input: str | list[str]
    """A text, or a list of texts."""
    restore: bool = False
    """Whether the answer has the original text of each placeholder."""

    @property
    def texts(self) -> list[str]:
        """All texts."""
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
    error: GuardFailure | None = None
    """If the text could not be looked at completely, why. The guard's `on_error` is then the
    verdict."""


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


class GuardedTexts(msgspec.Struct, frozen=True):
    """Holds texts and the guard that looks at them."""

    name: str
    guard: GuardConfig
    texts: list[str]
    restore: bool = False

    def items(self) -> list[Any]:
        """Return the texts."""
        return self.texts

    def request(self, model: str = "") -> InferenceRequest:
        """Return the request. Each text has a verdict of its own, and none is truncated."""
        guard = self.guard
        parameters = GuardParameters(
            detectors=guard.detectors, allow=guard.allow, overlap=guard.overlap
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

    def _result(self, text: str, outcome: ItemOutcome, placeholders: Placeholders) -> GuardResult:
        if outcome.failure is not None:
            error = GuardFailure(code=outcome.failure.code, detail=outcome.failure.detail)
            return GuardResult(verdict=self.guard.on_error, findings=[], error=error)
        result = _read(outcome.result)
        if result.verdict == "block":
            return replace(result, message=self.guard.message)
        if result.verdict != "redact":
            return result
        spans = [
            MarkedSpan(one.start, one.end, one.label)
            for one in result.findings
            if one.action == "redact"
        ]
        return replace(result, text=placeholders.redact(text, spans))


def guard_of(source: BodySource | Runtime, name: str) -> GuardConfig:
    """Return a guard of the configuration document.

    Raises:
        NotFound: the document has no such guard.
    """
    found = source.document.guards.get(name)
    if found is None:
        raise NotFound(f"There is no guard `{name[:80]}`; the operator's configuration names them.")
    return found


class GuardRoute(InferenceRoute):
    """Serves `POST /v1/guard/{name}`."""

    path = "/v1/guard/{name}"
    task = Task.GUARD
    answer_growth = GROWTH
    answers_failures = True
    _decode = BodyDecoder(GuardBody)

    @override
    def decode(self, source: BodySource) -> GuardedTexts:
        name = source.parameters["name"]
        guard, body = guard_of(source, name), self._decode(source.raw)
        return GuardedTexts(name, guard, body.texts, body.restore)

    @override
    def encode(
        self, body: GuardedTexts, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        results, originals = body.judge(answer)
        info = answer.model.info
        found = GuardAnswer(
            guard=body.name,
            model=info.name,
            revision=info.revision,
            results=results,
            placeholders=originals if body.restore else {},
            usage=usage,
        )
        return Rendered(JSON, msgspec.json.encode(found))
