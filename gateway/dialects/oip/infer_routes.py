"""Serves the inference routes of the Open Inference Protocol v2 over HTTP."""

from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute, Rendered
from sluicegate.gateway.dialects.oip.calls import TensorCall, tensor_call
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS
from sluicegate.gateway.dialects.oip.models import find_model
from sluicegate.gateway.dialects.oip.task_tensors import tasks_of
from sluicegate.gateway.dialects.oip.wire import LENGTH, json_part, read_request, write_answer
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.protocol import Task


class HttpTensorCall(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a call to a model, and the format of each output in the response."""

    call: TensorCall
    name: str
    """The model's name in the path."""
    are_binary: tuple[bool, ...]
    """For each output, whether it is sent as bytes."""

    def items(self) -> list[Any]:
        """Return the items."""
        return self.call.items()

    def request(self, model: str) -> InferenceRequest:
        """Return the native request for this call.

        The argument `model` is ignored, because `call` already holds the model. That model was
        found by the name in the path, and by the version if the path has one.
        """
        return self.call.request()


class OipInferRoute(InferenceRoute):
    """Serves `POST /v2/models/{model}/infer`."""

    path = "/v2/models/{model}/infer"
    task = Task.INFER
    headers = (LENGTH,)
    errors = OIP_ERRORS
    reads_models = True

    @override
    def json_part(self, raw: bytes, fields: tuple[bytes, ...]) -> bytes:
        return json_part(raw, *fields)

    @override
    def decode(self, source: BodySource) -> HttpTensorCall:
        name = source.parameters["model"]
        found = find_model(source.served, name, source.parameters.get("version", ""))
        tasks = [] if found.served is None else tasks_of(found.served.info)
        only_input = "INPUT" if tasks == [Task.INFER] else "TEXT"
        (length,) = source.fields
        sent = read_request(source.raw, length, only_input)
        call = tensor_call(
            sent.tensors,
            served=found.served,
            model=found.name,
            version=found.version,
            bounds=source.document.request,
        )
        are_binary = [
            sent.is_binary if wanted.is_binary is None else wanted.is_binary
            for wanted in call.wanted
        ]
        return HttpTensorCall(call=call, name=name, are_binary=tuple(are_binary))

    @override
    def encode(
        self, body: HttpTensorCall, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        call = body.call
        names = (body.name, call.version, call.id)
        return write_answer(names, call.outputs(answer), body.are_binary)


class OipVersionInferRoute(OipInferRoute):
    """Serves `POST /v2/models/{model}/versions/{version}/infer`."""

    path = "/v2/models/{model}/versions/{version}/infer"
