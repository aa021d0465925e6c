"""Writes the fuzzer's requests of tensors for gRPC, and reads the answers."""

import struct
from collections.abc import Iterator
from typing import Any  # Any: messages, whose classes are made at run time

import grpc

from gateway.rpc.messages import MessageTable
from loadtests.fuzz_dialects.routes import Asked, DialectRoute

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_PATIENCE = 60.0
_MESSAGES = MessageTable()


def infer(channel: grpc.Channel, message: Any, key: str, request_id: str) -> Any:
    """Start a call with this message, and return its future."""
    start = channel.unary_unary(
        METHOD,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=_MESSAGES["ModelInferResponse"].FromString,
    )
    metadata = (("authorization", f"Bearer {key}"), ("x-request-id", request_id))
    return start.future(message, metadata=metadata, timeout=_PATIENCE)


def tensor_message(route: DialectRoute, asked: Asked, unique: str) -> Any:
    """Return the gRPC message of a request to a route of tensors."""
    body = route.body(asked)
    return _MESSAGES["ModelInferRequest"](
        model_name=asked.model,
        id=unique,
        parameters={name: {"int64_param": value} for name, value in body["parameters"].items()},
        inputs=[
            {
                "name": one["name"],
                "datatype": one["datatype"],
                "shape": one["shape"],
                "contents": {"bytes_contents": [text.encode() for text in one["data"]]},
            }
            for one in body["inputs"]
        ],
    )


def payload_of(message: Any) -> dict[str, Any]:
    """Return an answer in the form that it has over HTTP."""
    pairs = zip(message.outputs, message.raw_output_contents, strict=True)
    return {
        "model_name": message.model_name,
        "outputs": [
            {"name": one.name, "shape": list(one.shape), "data": _data(one.datatype, raw)}
            for one, raw in pairs
        ],
    }


def _data(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "FP32":
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return list(_texts(raw))


def _texts(raw: bytes) -> Iterator[str]:
    """Yield the texts in a buffer, each stored after its length."""
    at = 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        yield raw[at + 4 : at + 4 + size].decode()
        at += 4 + size
