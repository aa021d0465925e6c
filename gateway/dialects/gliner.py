"""Implements the API of the GLiNER server that NeMo Guardrails calls.

Such a server has a single model. On the gateway, the path therefore names the model.
"""

from typing import Annotated, Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.api.schemas import EntitiesBody
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.stored_results import StoredEntity, entities_in
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.protocol import LABELS, Task

# The default of GLiNER models. Left out, so that native requests have the same cache keys.
_THRESHOLD = 0.5
# NeMo Guardrails also sends empty texts, which have no entities. A model refuses them, so it reads
# this text instead, whose entities are not used.
_INSTEAD = "."
# The answer has the text with labels in it, and each entity with longer names of fields.
_GROWTH = 3.0


class GlinerExtractBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Find entities of any type in a text, as the GLiNER server of NeMo Guardrails does."""

    text: str
    """The text."""
    labels: Annotated[list[str], LABELS]
    """The types of entities to find. Unlike that server, Sluicegate has no default types."""
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = _THRESHOLD
    """The score that an entity must exceed."""
    chunk_length: int | None = None
    """Ignored, because the model reads long texts in windows."""
    overlap: int | None = None
    """Ignored, like `chunk_length`."""
    flat_ner: bool = False
    """Whether the model finds no entities inside other ones. The answer never has such entities."""


class GlinerSpan(msgspec.Struct, frozen=True, kw_only=True):
    """An entity."""

    value: str
    """The text of the entity."""
    suggested_label: str
    """Its type."""
    start_position: int
    """Its first character, counted from 0."""
    end_position: int
    """The character after its last one."""
    score: float
    """Its score."""


class GlinerExtractAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The entities of the text, in its order."""

    entities: list[GlinerSpan]
    """The entities, of which none is inside another one."""
    total_entities: int
    """The number of entities."""
    tagged_text: str
    """The text, in which each entity is written as `[value](suggested_label)`."""


class _ExtractRequest(msgspec.Struct, frozen=True):
    """Holds a body and the name of its model."""

    model: str
    body: GlinerExtractBody

    def items(self) -> list[Any]:
        return [self.body.text if self.body.text.strip() else _INSTEAD]

    def request(self, model: str = "") -> InferenceRequest:
        return EntitiesBody(
            model=self.model,
            input=self.items(),
            labels=self.body.labels,
            threshold=None if self.body.threshold == _THRESHOLD else self.body.threshold,
            flat=None if self.body.flat_ner else False,
        ).request()


class ExtractRoute(InferenceRoute):
    """Serves the route below the path of a model."""

    path = "/gliner/{model}/v1/extract"
    task = Task.ENTITIES
    answer_growth = _GROWTH
    _decode = BodyDecoder(GlinerExtractBody)

    @override
    def decode(self, source: BodySource) -> _ExtractRequest:
        body = self._decode(source.raw)
        return _ExtractRequest(self.model_name(source), body)

    def model_name(self, source: BodySource) -> str:
        """Return the name of the requested model."""
        return source.parameters["model"]

    @override
    def encode(
        self, body: _ExtractRequest, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        is_empty = not body.body.text.strip()
        found = [] if is_empty else _outermost(entities_in(answer.outcomes[0].result))
        spans = [
            GlinerSpan(
                value=one.text,
                suggested_label=one.label,
                start_position=one.start,
                end_position=one.end,
                score=one.score,
            )
            for one in found
        ]
        result = GlinerExtractAnswer(
            entities=spans, total_entities=len(spans), tagged_text=_tagged(body.body.text, found)
        )
        return Rendered(JSON, msgspec.json.encode(result))


class ExtractHostRoute(ExtractRoute):
    """Serves the route without a model in the path, if only one model can be meant."""

    path = "/v1/extract"
    reads_models = True

    @override
    def model_name(self, source: BodySource) -> str:
        names = [
            served.info.name
            for served in source.visible()
            if Task.ENTITIES in served.info.tasks and served.info.labels is None
        ]
        if len(names) != 1:
            raise InvalidRequest(
                f"The path names no model, and {len(names)} models of this key find entities of"
                " any type: use `/gliner/{model}/v1/extract`."
            )
        return names[0]


def _outermost(entities: list[StoredEntity]) -> list[StoredEntity]:
    """Return the entities that are not inside another one."""
    kept: list[StoredEntity] = []
    for one in sorted(entities, key=lambda one: (one.start, -one.end)):
        if not kept or one.start >= kept[-1].end:
            kept.append(one)
    return kept


def _tagged(text: str, entities: list[StoredEntity]) -> str:
    parts, begin = [], 0
    for one in entities:
        parts.append(f"{text[begin : one.start]}[{one.text}]({one.label})")
        begin = one.end
    return "".join([*parts, text[begin:]])


_BELOW_MODEL = ExtractRoute()
GLINER = Dialect(
    name="gliner",
    title="As NeMo Guardrails",
    description="The route of the GLiNER server that NeMo Guardrails calls.",
    routes={
        _BELOW_MODEL: dialect_operation(
            _BELOW_MODEL,
            dialect="gliner",
            id="gliner_extract",
            summary="Find entities of any type",
            body=GlinerExtractBody,
            example={"text": "Ada lives in Paris.", "labels": ["city"], "threshold": 0.5},
            answer=GlinerExtractAnswer,
            answer_example={
                "entities": [
                    {
                        "value": "Paris",
                        "suggested_label": "city",
                        "start_position": 13,
                        "end_position": 18,
                        "score": 0.98,
                    }
                ],
                "total_entities": 1,
                "tagged_text": "Ada lives in [Paris](city).",
            },
            path_example={"model": "gliner"},
        ),
        ExtractHostRoute(): None,
    },
)
