"""Defines the product's own inference routes, one for each task."""

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
from sluicegate.gateway.api.vectors import as_base64, as_bytes, as_json
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.protocol import Task

_START = b'{"embedding":'
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
        return isinstance(body, EmbedBody) and body.is_as_stored

    @override
    def encode(self, body: Body, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        if not isinstance(body, EmbedBody) or body.is_as_stored:
            return super().encode(body, answer, usage, request_id)
        kind = body.output_dtype
        if body.encoding_format == "bytes":
            vectors = [as_bytes(outcome.result, kind) for outcome in answer.outcomes]
            return Rendered(_BYTES % len(vectors), b"".join(vectors))
        render = as_base64 if body.encoding_format == "base64" else as_json
        outcomes = [
            replace(outcome, result=b"".join([_START, render(outcome.result, kind), b"}"]))
            if outcome.failure is None
            else outcome
            for outcome in answer.outcomes
        ]
        return super().encode(body, replace(answer, outcomes=outcomes), usage, request_id)


NATIVE_ROUTES = tuple(
    EmbedRoute(body) if body is EmbedBody else NativeRoute(body) for body in BODIES
)
ROUTE_OF = {route.task: route for route in NATIVE_ROUTES}
"""The native route of each task."""
INFER = ROUTE_OF[Task.INFER]
