"""Answers `ModelInfer` as a route of the application: messages in, messages out.

The gRPC listener passes its messages to this route. Keys, limits, cache, events and traces work as
for every inference route.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute, Rendered
from sluicegate.gateway.dialects.oip.calls import TensorCall, TensorRequest, tensor_call
from sluicegate.gateway.dialects.oip.dialect import OPEN_INFERENCE
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS
from sluicegate.gateway.dialects.oip.models import find_model
from sluicegate.gateway.dialects.oip.tensors import InputTensor, RequestedOutput
from sluicegate.gateway.errors import InvalidRequest, TaskNotSupported
from sluicegate.gateway.rpc.messages import (
    PACKAGE,
    Message,
    MessageTable,
    check_fields,
    decode_message,
)
from sluicegate.gateway.types import Answer, InferenceRequest, RequestId, Usage
from sluicegate.wire.protocol import Task

SERVICE = f"/{PACKAGE}.GRPCInferenceService/"
_PROTOBUF = b"content-type: application/x-protobuf\r\n"
_FOR_SERVER = "triton_"  # parameters that shape no answer here
_SHARED_MEMORY = "shared_memory_region"


class RpcTensorCall(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a request to a model."""

    call: TensorCall
    name: str
    """The name of the model in the request."""

    def items(self) -> list[Any]:
        """Return the items."""
        return self.call.items()

    def request(self, model: str) -> InferenceRequest:
        """Return the request."""
        return self.call.request()


class ModelInferRoute(InferenceRoute):
    """Answers `ModelInfer`: a `ModelInferRequest` by a `ModelInferResponse`."""

    path = f"{SERVICE}ModelInfer"
    task = Task.INFER
    errors = OIP_ERRORS
    reads_models = True
    takes_json = False

    def __init__(self, messages: MessageTable) -> None:
        self._request = messages["ModelInferRequest"]
        self._response = messages["ModelInferResponse"]
        super().__init__()
        self.metric_name = "grpc"

    @override
    def json_part(self, raw: bytes, fields: tuple[bytes, ...]) -> bytes:
        return b""  # `decode` bounds it

    @override
    def decode(self, source: BodySource) -> RpcTensorCall:
        bounds = source.document.request
        check_fields(source.raw, most=bounds.max_values)
        message = decode_message(self._request, source.raw)
        found = find_model(source.served, message.model_name, message.model_version)
        request = TensorRequest(
            inputs=_inputs(message),
            outputs=[_output(one) for one in message.outputs],
            parameters={
                name: value
                for name, value in _values(message.parameters).items()
                if not name.startswith(_FOR_SERVER)
            },
            id=message.id,
        )
        call = tensor_call(
            request,
            served=found.served,
            model=found.name,
            version=found.version,
            bounds=bounds,
        )
        return RpcTensorCall(call=call, name=message.model_name)

    @override
    def encode(
        self, body: RpcTensorCall, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        outputs = body.call.outputs(answer)
        message = self._response(
            model_name=body.name,
            model_version=body.call.version,
            id=body.call.id,
            outputs=[
                {"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in outputs
            ],
            raw_output_contents=[one.raw() for one in outputs],
        )
        return Rendered(_PROTOBUF, message.SerializeToString())


def rpc_dialect() -> Dialect:
    """Return the routes that only the gRPC listener uses."""
    return Dialect(
        name=OPEN_INFERENCE.name,
        title=OPEN_INFERENCE.title,
        description=OPEN_INFERENCE.description,
        routes={ModelInferRoute(MessageTable()): None},
        errors=OIP_ERRORS,
        paths=(SERVICE,),
    )


def _inputs(message: Message) -> list[InputTensor]:
    """Return the inputs, whose elements are either all in `raw_input_contents` or none."""
    inputs, raw = message.inputs, message.raw_input_contents
    if any(_SHARED_MEMORY in one.parameters for one in [*inputs, *message.outputs]):
        raise TaskNotSupported("There is no shared memory with clients; send the tensors.")
    if raw and len(raw) != len(inputs):
        raise InvalidRequest(
            f"There are {len(raw)} `raw_input_contents` for {len(inputs)} inputs; send one for each"
            " input, or `contents` in all of them."
        )
    return [
        InputTensor(
            name=one.name,
            datatype=one.datatype,
            shape=list(one.shape),
            data=raw[index] if raw else list(one.contents.bytes_contents),
        )
        for index, one in enumerate(inputs)
    ]


def _output(message: Message) -> RequestedOutput:
    parameters = _values(message.parameters)
    return msgspec.convert(
        {"name": message.name, "classification": parameters.get("classification", 0)},
        RequestedOutput,
    )


def _values(parameters: Mapping[str, Message]) -> dict[str, Any]:
    """Return the values of parameters, without parameters that have no value."""
    given = {name: (one, one.WhichOneof("parameter_choice")) for name, one in parameters.items()}
    return {name: getattr(one, field) for name, (one, field) in given.items() if field}
