"""Defines the product's own inference routes, one for each task."""

from collections.abc import Sequence

from msgspec.structs import replace
from typing_extensions import override

from sluicegate.gateway.api.answers import encode_answer
from sluicegate.gateway.api.inference_route import (
    JSON,
    BodySource,
    InferenceRoute,
    Rendered,
)
from sluicegate.gateway.api.schemas import BODIES, Body, EmbedBody, InferBody, RerankBody
from sluicegate.gateway.api.vectors import as_bytes, in_form
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, ItemOutcome, RequestId, Usage
from sluicegate.wire.protocol import Task

_BYTES = b"content-type: application/octet-stream\r\nsluicegate-vectors: %d\r\n"


class NativeRoute(InferenceRoute):
    """Answers `POST /v1/{task}`, where results are sent as they were stored."""

    def __init__(self, body: type[Body]) -> None:
        self.task = body.task
        self.path = f"/v1/{body.task}" + "/{model:path}" * (body is InferBody)
        self._decode = BodyDecoder(body)
        super().__init__()

    @override
    def decode(self, source: BodySource) -> Body:
        return self._decode(source.raw)

    @override
    def is_spliced(self, body: Body) -> bool:
        return not isinstance(body, RerankBody)

    @override
    def encode(self, body: Body, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        return Rendered(JSON, encode_answer(body, answer, usage))


class EmbedRoute(NativeRoute):
    """Answers `POST /v1/embed`, where vectors are sent in the form that the caller asks for."""

    @override
    def is_spliced(self, body: Body) -> bool:
        return isinstance(body, EmbedBody) and body.is_as_stored and len(body.outputs) == 1

    @override
    def encode(self, body: Body, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        if not isinstance(body, EmbedBody) or self.is_spliced(body):
            return super().encode(body, answer, usage, request_id)
        kind = body.output_dtype
        if body.encoding_format == "bytes":
            vectors = [as_bytes(outcome.result, kind) for outcome in answer.outcomes]
            return Rendered(_BYTES % len(vectors), b"".join(vectors))
        outcomes = answer.outcomes
        if not body.is_as_stored:
            packed = body.encoding_format == "base64"
            outcomes = [
                replace(outcome, result=in_form(outcome.result, kind, packed=packed))
                if outcome.failure is None
                else outcome
                for outcome in outcomes
            ]
        joined = joined_outputs(outcomes, len(body.outputs))
        return super().encode(body, replace(answer, outcomes=joined), usage, request_id)


def joined_outputs(outcomes: Sequence[ItemOutcome], count: int) -> Sequence[ItemOutcome]:
    """Return one outcome for each text, whose `count` outputs are items that follow each other.

    If an output of a text failed, the text's outcome is this failure.
    """
    if count == 1:
        return outcomes
    return [_join(outcomes[start : start + count]) for start in range(0, len(outcomes), count)]


def _join(outcomes: Sequence[ItemOutcome]) -> ItemOutcome:
    failed = next((outcome for outcome in outcomes if outcome.failure is not None), None)
    if failed is not None:
        return failed
    return replace(
        outcomes[0],
        result=b"{%b}" % b",".join([outcome.result[1:-1] for outcome in outcomes]),
        truncated_from=max(outcome.truncated_from for outcome in outcomes),
    )


NATIVE_ROUTES = tuple(
    EmbedRoute(body) if body is EmbedBody else NativeRoute(body) for body in BODIES
)
ROUTE_OF = {route.task: route for route in NATIVE_ROUTES}
"""The native route of each task."""
INFER = ROUTE_OF[Task.INFER]
