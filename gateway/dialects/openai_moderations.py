"""Implements OpenAI's `moderations` with a classifier or a guard.

The configuration document maps a classifier's labels to categories. The categories of a guard are
its detectors.
"""

from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.key_rights import check_model
from sluicegate.gateway.api.schemas import ClassifyBody
from sluicegate.gateway.config.document import Document, ModelConfig
from sluicegate.gateway.dialects.guards.route import GuardedTexts, GuardResult
from sluicegate.gateway.dialects.openai_errors import OPENAI_ERRORS
from sluicegate.gateway.dialects.stored_results import labels_in
from sluicegate.gateway.errors import GatewayError, InvalidRequest
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.inference.visibility import model_not_found
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, ServedModel, Usage
from sluicegate.wire.guards import GuardConfig
from sluicegate.wire.protocol import Task


class OpenAITextPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text. Objects of other types are refused."""

    type: Literal["text"]
    """A constant."""
    text: str
    """The text."""


class OpenAIModerationsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Check texts for content to moderate."""

    input: str | list[str | OpenAITextPart]
    """A text, or a list of texts."""
    model: str = ""
    """A model configured for moderation, or a guard. Needed unless exactly one model is configured
    for moderation."""


class OpenAIModeration(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a text."""

    flagged: bool
    """Whether any category applies. Of a guard: whether the text is blocked, or would be
    redacted."""
    categories: dict[str, bool]
    """Whether each configured category applies. Of a guard: whether each detector found something.
    If the text could not be looked at, there is a category `error`, too."""
    category_scores: dict[str, float]
    """The score of each category."""
    category_applied_input_types: dict[str, list[str]]
    """`text` for each category."""


class OpenAIModerations(msgspec.Struct, frozen=True, kw_only=True):
    """The results for all texts."""

    id: str
    """The id of the request that computed this response or first read it from the cache."""
    model: str
    """The model or guard that was used."""
    results: list[OpenAIModeration]
    """A result for each text."""


class _ModerationRequest(msgspec.Struct, frozen=True):
    """Holds the texts, and the configuration of the model that classifies them."""

    model: str
    texts: list[str]
    entry: ModelConfig

    def items(self) -> list[Any]:
        return self.texts

    def request(self, model: str = "") -> InferenceRequest:
        return ClassifyBody(model=self.model, input=list(self.texts)).request()


class ModerationsRoute(InferenceRoute):
    """Serves `POST /v1/moderations`."""

    path = "/v1/moderations"
    task = Task.CLASSIFY
    errors = OPENAI_ERRORS
    reads_models = True
    answers_failures = True
    answer_growth = 3.0  # a category has a score, a flag and the types of its inputs
    _decode = BodyDecoder(OpenAIModerationsBody)

    @override
    def decode(self, source: BodySource) -> _ModerationRequest | GuardedTexts:
        body = self._decode(source.raw)
        parts = body.input if isinstance(body.input, list) else [body.input]
        texts = [part if isinstance(part, str) else part.text for part in parts]
        name = body.model or _only_model(source.document)
        entry = source.document.models.get(name, ModelConfig())
        # A model can begin to be served after the document with its configuration was published.
        # Without this check, a model without configured categories would then return results
        # without categories.
        if not entry.moderation:
            guard = source.document.guards.get(name)
            if guard is not None:
                return GuardedTexts(name, guard, texts)
            raise _refusal(source, name)
        _check_labels(source.served(name), entry)
        return _ModerationRequest(name, texts, entry)

    @override
    def encode(
        self,
        body: _ModerationRequest | GuardedTexts,
        answer: Answer,
        usage: Usage,
        request_id: RequestId,
    ) -> Rendered:
        answer_id = f"modr-{request_id}"
        if isinstance(body, GuardedTexts):
            judged, _ = body.judge(answer)
            guarded = [_guarded(one, body.guard) for one in judged]
            return body.rendered(
                OpenAIModerations(id=answer_id, model=body.name, results=guarded), judged, answer
            )
        results = [_result(outcome.result, body.entry) for outcome in answer.outcomes]
        found = OpenAIModerations(id=answer_id, model=answer.model.info.name, results=results)
        return Rendered(JSON, msgspec.json.encode(found))


def _refusal(source: BodySource, name: str) -> GatewayError:
    """Return the error for a model that is not configured for moderation.

    Raises:
        PermissionDenied: the key must not learn whether the model exists.
    """
    if source.principal is not None:
        check_model(source.principal, name)
    if source.served(name) is None:
        return model_not_found(name, source.visible())
    return InvalidRequest(
        f"The model `{name}` is not configured for moderation; choose a model that is, or use"
        " `POST /v1/classify`."
    )


def _check_labels(model: ServedModel | None, entry: ModelConfig) -> None:
    """Refuse a configuration with labels that the model does not have.

    Such labels could never be flagged. The publication of a document checks the labels, too, but
    only if the model is already served at that time.

    Raises:
        InvalidRequest: the model does not have a label. The message names the first such label.
    """
    if model is None:
        return
    name, labels = model.info.name, model.info.labels or ()
    for label in entry.moderation:
        if label not in labels:
            raise InvalidRequest(
                f"The model `{name}` has no label `{label}`, which its configuration for moderation"
                f" names; ask the operator to correct `models.{name}.moderation`."
            )


def _only_model(document: Document) -> str:
    names = [name for name, entry in document.models.items() if entry.moderation]
    if len(names) != 1:
        raise InvalidRequest(
            f"`model` is needed, because {len(names)} models are configured for moderation."
        )
    return names[0]


def _result(result: bytes, entry: ModelConfig) -> OpenAIModeration:
    """Return the categories of a text. A category's score is the highest score of its labels."""
    scores = dict.fromkeys(entry.moderation.values(), 0.0)
    for found in labels_in(result):
        category = entry.moderation.get(found.label)
        if category is not None:
            scores[category] = max(scores[category], found.score)
    categories = {name: score >= entry.moderation_threshold for name, score in scores.items()}
    return _moderation(scores, categories, flagged=any(categories.values()))


def _guarded(result: GuardResult, guard: GuardConfig) -> OpenAIModeration:
    """Return a category for each detector. Clients only block, so what a guard redacts is flagged.

    What it only flags has its category, but does not stop the text.
    """
    scores = dict.fromkeys([one.name for one in guard.detectors], 0.0)
    categories = dict.fromkeys(scores, False)
    for found in result.findings:
        scores[found.detector] = max(scores[found.detector], found.score)
        categories[found.detector] = True
    if result.error is not None:
        scores["error"], categories["error"] = 1.0, True
    return _moderation(scores, categories, flagged=result.verdict in ("redact", "block"))


def _moderation(
    scores: dict[str, float], categories: dict[str, bool], *, flagged: bool
) -> OpenAIModeration:
    return OpenAIModeration(
        flagged=flagged,
        categories=categories,
        category_scores=scores,
        category_applied_input_types={name: ["text"] for name in scores},
    )
