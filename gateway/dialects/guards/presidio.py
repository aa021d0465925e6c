"""Implements the REST contract of Microsoft Presidio: a guard finds what is personal in texts.

The contract is that of presidio-analyzer and presidio-anonymizer 2.2.366 (`docs/api-docs` of their
repository). Presidio has no verdicts: its clients decide what to do about the entities found.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath
from msgspec.structs import replace
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.error_handling import NO_ROUTE
from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.json_body import read_json
from sluicegate.gateway.api.metadata import AnyRequest, Models, Runtimes, principal_of
from sluicegate.gateway.api.openapi_parts import Content, Json, Kind, Operation
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.guards.presidio_anonymizer import (
    OPERATORS,
    PresidioAnonymizeAnswer,
    PresidioAnonymizeBody,
    anonymize,
)
from sluicegate.gateway.dialects.guards.route import (
    GROWTH,
    Finding,
    GuardedTexts,
    GuardResult,
    flagging,
    guard_of,
)
from sluicegate.gateway.dialects.hugging_face_errors import HUGGING_FACE_ERRORS
from sluicegate.gateway.errors import (
    DependencyUnavailable,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    PayloadTooLarge,
    RateLimited,
)
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.inference.visibility import model_not_found, visible_models
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.guards import GuardConfig, labels_of
from sluicegate.wire.protocol import Task
from sluicegate.wire.settings import unit

_BASE = "/guard/{name}/presidio"
_LITESTAR_BASE = "/guard/{name:str}/presidio"
_ERRORS = (RateLimited, DependencyUnavailable, NotFound)
# Presidio's names of formats, and of the labels of CoNLL-2003.
_ENTITY_TYPES = {
    "CREDIT_CARD": "CREDIT_CARD",
    "EMAIL": "EMAIL_ADDRESS",
    "IBAN": "IBAN_CODE",
    "IP_ADDRESS": "IP_ADDRESS",
    "LOC": "LOCATION",
    "ORG": "ORGANIZATION",
    "PER": "PERSON",
    "PHONE": "PHONE_NUMBER",
    "URL": "URL",
    "US_SSN": "US_SSN",
}


class PresidioAnalyzeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Find entities in texts.

    Other fields of Presidio, such as `correlation_id`, are ignored.
    """

    text: str | list[str]
    """A text, or a list of texts."""
    language: str = "en"
    """Ignored: the guard's detectors look at texts in any language."""
    entities: list[str] | None = None
    """The types of entities to return, by default all."""
    score_threshold: Annotated[float, unit("score")] = 0.0
    """The lowest score of an entity. The guard's own thresholds apply, too."""
    return_decision_process: bool = False
    """Whether each entity says which detector found it."""
    allow_list: list[str] = []
    """Texts that are no entities."""
    allow_list_match: str = "exact"
    """`exact` only."""
    ad_hoc_recognizers: list[Any] = []
    """Refused: write a detector with the kind `pattern` or `words`."""
    context: list[str] = []
    """Refused."""


class PresidioExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Which detector found an entity."""

    recognizer: str
    """The name of the detector."""
    original_score: float
    """How sure it is, from 0 to 1."""
    score: float
    """The same."""
    textual_explanation: str | None = None
    """The model of the detector, if it has one."""


class PresidioEntity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity in a text."""

    entity_type: str
    """What it is."""
    start: int
    """The first code point of the span, counted from 0."""
    end: int
    """The code point after its last one."""
    score: float
    """How sure the detector is, from 0 to 1."""
    analysis_explanation: PresidioExplanation | None
    """With `return_decision_process`: which detector found it."""


class _Analyzed(GuardedTexts, frozen=True):
    """Holds the texts, and which findings the caller wants."""

    body: PresidioAnalyzeBody = PresidioAnalyzeBody(text="")

    @override
    def request(self, model: str = "") -> InferenceRequest:
        """Return the request.

        One failed text fails the whole request, because Presidio's answer has no place for an
        error.
        """
        return replace(super().request(model), continue_on_error=False)

    def entities(self, text: str, result: GuardResult) -> list[PresidioEntity]:
        """Return what was found in a text, in its order."""
        body, kept = self.body, list[PresidioEntity]()
        allowed, asked = frozenset(body.allow_list), frozenset(body.entities or ())
        found = [
            _entity(one, is_explained=body.return_decision_process)
            for one in result.findings
            if one.score >= body.score_threshold
            and text[one.start : one.end] not in allowed
            and (not asked or _entity_type(one.label) in asked)
        ]
        # As in Presidio, no entity is in another one of its type.
        for one in sorted(found, key=lambda one: (one.entity_type, one.start, -one.end)):
            if not kept or kept[-1].entity_type != one.entity_type or kept[-1].end < one.end:
                kept.append(one)
            elif kept[-1].score < one.score:
                kept[-1] = replace(kept[-1], score=one.score)
        return sorted(kept, key=lambda one: (one.start, one.end))


class PresidioAnalyzeRoute(InferenceRoute):
    """Serves `POST /analyze`. The guard's actions and its `on_error` do not apply."""

    path = f"{_BASE}/analyze"
    task = Task.GUARD
    errors = HUGGING_FACE_ERRORS
    answer_growth = GROWTH
    _decode = BodyDecoder(PresidioAnalyzeBody)

    @override
    def decode(self, source: BodySource) -> _Analyzed:
        name = source.parameters["name"]
        guard, body = guard_of(source, name), self._decode(source.raw)
        if body.ad_hoc_recognizers or body.context:
            raise InvalidRequest(
                "`ad_hoc_recognizers` and `context` are not supported: the operator's configuration"
                " says what a guard looks for."
            )
        if body.allow_list_match != "exact":
            raise InvalidRequest("`allow_list_match` may only be `exact`.")
        known = supported_entities(guard)
        for one in body.entities or ():
            if one not in known:
                raise InvalidRequest(
                    f"The guard `{name[:80]}` does not look for `{one[:80]}`; it looks for"
                    f" {', '.join(known)}."
                )
        texts = body.text if isinstance(body.text, list) else [body.text]
        only_finding = replace(guard, detectors=flagging(guard.detectors))
        return _Analyzed(name, only_finding, texts, body=body)

    @override
    def encode(
        self, body: _Analyzed, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        results, _ = body.judge(answer)
        pairs = zip(body.texts, results, strict=True)
        found: Any = [body.entities(text, result) for text, result in pairs]
        return body.rendered(
            found if isinstance(body.body.text, list) else found[0], results, answer
        )


def supported_entities(guard: GuardConfig) -> list[str]:
    """Return the types of entities that a guard looks for.

    Labels that a classifier does not expect are not among them.
    """
    return sorted({_entity_type(label) for one in guard.detectors for label in labels_of(one)})


def _entity_type(label: str) -> str:
    """Return Presidio's name of a label; other labels are written as Presidio writes names."""
    name = label.upper().replace(" ", "_")
    return _ENTITY_TYPES.get(name, name)


def _entity(found: Finding, *, is_explained: bool) -> PresidioEntity:
    explanation = PresidioExplanation(
        recognizer=found.detector,
        original_score=found.score,
        score=found.score,
        textual_explanation=found.model or None,
    )
    return PresidioEntity(
        entity_type=_entity_type(found.label),
        start=found.start,
        end=found.end,
        score=found.score,
        analysis_explanation=explanation if is_explained else None,
    )


# What the routes without a body say of a guard.
_DESCRIPTIONS: dict[str, tuple[str, Callable[[GuardConfig], list[str]]]] = {
    "anonymizers": ("The operators of `anonymize`", lambda _: list(OPERATORS)),
    "health": ("Whether a guard answers", lambda _: []),
    "recognizers": ("The detectors of a guard", lambda one: [each.name for each in one.detectors]),
    "supportedentities": ("The types of entities that a guard looks for", supported_entities),
}
_FOUND: Any = [
    {
        "entity_type": "EMAIL_ADDRESS",
        "start": 9,
        "end": 24,
        "score": 1.0,
        "analysis_explanation": None,
    }
]
_NAME: Json = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The name.",
    "schema": {"type": "string", "minLength": 1},
    "example": "chat",
}


@get(f"{_LITESTAR_BASE}/{{what:str}}", include_in_schema=False)
async def describe_guard(
    name: FromPath[str],
    what: FromPath[str],
    request: AnyRequest,
    models: Models,
    runtimes: Runtimes,
) -> Response[Any]:
    """Return a list about a guard, or a line if it answers."""
    guard = guard_of(runtimes.current, name)
    if what not in _DESCRIPTIONS:
        raise NotFound(NO_ROUTE)
    visible = visible_models(models.models(), runtimes.current.document, principal_of(request))
    if guard.model not in [one.info.name for one in visible]:
        raise model_not_found(guard.model, visible)
    if what == "health":
        return Response("The guard answers.", media_type="text/plain")
    return Response(_DESCRIPTIONS[what][1](guard))


@post(
    f"{_LITESTAR_BASE}/anonymize",
    status_code=200,
    opt={
        "operation": Operation(
            id="presidio_anonymize",
            summary="Replace entities in a text, as Presidio does",
            tag="presidio",
            kind=Kind.LIMITED,
            errors=(*_ERRORS, PayloadTooLarge),
            error_format=HUGGING_FACE_ERRORS,
            body=(
                Content(
                    type=PresidioAnonymizeBody,
                    summary="A text and its entities",
                    example={
                        "text": "Write to ada@example.com",
                        "analyzer_results": [
                            {"entity_type": "EMAIL_ADDRESS", "start": 9, "end": 24, "score": 1.0}
                        ],
                        "anonymizers": {"DEFAULT": {"type": "mask", "chars_to_mask": 11}},
                    },
                ),
            ),
            answers={200: (Content(summary="The new text"),)},
            about={"name": {"description": _NAME["description"], "example": "chat"}},
        )
    },
)
async def anonymize_text(
    name: FromPath[str], request: AnyRequest, runtimes: Runtimes
) -> PresidioAnonymizeAnswer:
    """Replace entities in a text. No model runs."""
    guard_of(runtimes.current, name)
    return anonymize(await read_json(request, PresidioAnonymizeBody))


def _describing(what: str, summary: str) -> Operation:
    is_list = what != "health"
    return Operation(
        id=f"presidio_{what}",
        summary=summary,
        tag="presidio",
        kind=Kind.LIMITED,
        errors=(*_ERRORS, ModelNotFound),
        error_format=HUGGING_FACE_ERRORS,
        answers={
            200: (
                Content(type=list[str], summary=summary)
                if is_list
                else Content(type=str, media="text/plain", summary=summary),
            )
        },
        parameters=(_NAME,),
    )


_ROUTE = PresidioAnalyzeRoute()
PRESIDIO = Dialect(
    name="presidio",
    title="Guards",
    description="Presidio's analyzer and anonymizer: the base URL is `/guard/{name}/presidio`.",
    routes={
        _ROUTE: dialect_operation(
            _ROUTE,
            dialect="presidio",
            id="presidio_analyze",
            summary="Find entities in texts, as Presidio does",
            body=PresidioAnalyzeBody,
            example={"text": "Write to ada@example.com", "language": "en"},
            answer=list[PresidioEntity | list[PresidioEntity]],
            answer_example=_FOUND,
            path_example={"name": "chat"},
        )
    },
    handlers=(describe_guard, anonymize_text),
    operations={
        ("get", f"{_BASE}/{what}"): _describing(what, summary)
        for what, (summary, _) in _DESCRIPTIONS.items()
    },
    errors=HUGGING_FACE_ERRORS,
    paths=("/guard/",),
)
