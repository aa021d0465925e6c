"""Defines the product's own inference routes, one for each task."""

import msgspec
from typing_extensions import override

from backends.protocol import Task
from gateway.api.answers import encode_answer
from gateway.api.inference_route import (
    JSON,
    BodySource,
    InferenceRoute,
    Rendered,
)
from gateway.api.schemas import BODIES, Body, InferBody, RerankBody
from gateway.types import Answer, RequestId, Usage


class NativeRoute(InferenceRoute):
    """Answers `POST /v1/{task}`, where results are sent as they were stored."""

    def __init__(self, body: type[Body]) -> None:
        self.task = body.task
        self.path = f"/v1/{body.task}" + "/{model:path}" * (body is InferBody)
        self.is_spliced = body is not RerankBody
        self._decode = msgspec.json.Decoder(body).decode
        super().__init__()

    @override
    def decode(self, source: BodySource) -> Body:
        return self._decode(source.raw)

    @override
    def encode(
        self, body: Body | None, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        return Rendered(JSON, encode_answer(body, answer, usage))


NATIVE_ROUTES = tuple(NativeRoute(body) for body in BODIES)
ROUTE_OF = {route.task: route for route in NATIVE_ROUTES}
"""The native route of each task."""
INFER = ROUTE_OF[Task.INFER]
