"""Tensors as the protocol sends them: named in JSON, raw behind it where the server knows that."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from backends.errors import ModelFailed
from backends.open_inference.client import Reply
from backends.types import FloatArray

INTEGERS: dict[str, np.dtype[Any]] = {
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
FLOATS: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP16": np.dtype("<f2"),
    "FP64": np.dtype("<f8"),
}
_JSON_BYTES = "Inference-Header-Content-Length"


class _Parameters(msgspec.Struct, frozen=True):
    binary_data_size: int | None = None


class _Output(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: _Parameters = _Parameters()


class _Outputs(msgspec.Struct, frozen=True):
    outputs: list[_Output]


def encode(
    inputs: Mapping[str, tuple[str, np.ndarray[Any, Any]]], output: str, *, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a run; an input is a data type of the protocol and its values."""
    described: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, (datatype, values) in inputs.items():
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": values.shape}
        if binary:
            raw.append(values.tobytes())
            tensor["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            tensor["data"] = values.ravel().tolist()
        described.append(tensor)
    wanted: dict[str, Any] = {"name": output}
    if binary:
        wanted["parameters"] = {"binary_data": True}
    head = msgspec.json.encode({"inputs": described, "outputs": [wanted]})
    if not binary:
        return head, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", _JSON_BYTES: str(len(head))}
    return b"".join([head, *raw]), headers


def decode(reply: Reply, output: str, shape: tuple[int, ...]) -> FloatArray:
    """Return an output of a run in float32.

    Raises:
        ModelFailed: it is not there, or not of `shape`.
    """
    head = reply.body if reply.json_bytes is None else reply.body[: reply.json_bytes]
    try:
        outputs = msgspec.json.decode(head, type=_Outputs).outputs
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ModelFailed("the server's response is not of the protocol") from None
    at = len(head)
    for tensor in outputs:
        size = tensor.parameters.binary_data_size or 0
        if tensor.name == output:
            return _values(tensor, reply.body[at : at + size], shape)
        at += size
    raise ModelFailed(f"the server's response lacks the output `{output}`")


def _values(tensor: _Output, raw: bytes, shape: tuple[int, ...]) -> FloatArray:
    kind = FLOATS.get(tensor.datatype)
    if kind is None or tuple(tensor.shape) != shape:
        raise ModelFailed(
            f"the server's output `{tensor.name}` is {tensor.datatype} of {tensor.shape}, not "
            f"floats of {list(shape)}"
        )
    try:
        flat = np.frombuffer(raw, kind) if tensor.data is None else np.array(tensor.data, kind)
        values: FloatArray = flat.reshape(shape).astype(np.float32)
    except (ValueError, TypeError):
        raise ModelFailed(f"the server's output `{tensor.name}` is not whole") from None
    return values
