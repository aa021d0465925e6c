"""Encodes and decodes tensors as JSON, or as binary values after a JSON head."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sluicegate.backends.errors import UpstreamUnavailable
from sluicegate.backends.open_inference.client import Reply
from sluicegate.backends.types import FloatArray
from sluicegate.wire.protocol import UNREADABLE

INTEGERS: dict[str, np.dtype[Any]] = {
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
FLOATS: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP16": np.dtype("<f2"),
    "FP64": np.dtype("<f8"),
}
_MICROSECONDS = 1e6
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
    model_version: str | None = None


class Decoded(NamedTuple):
    """Holds an output, and the version of the model that the server reports."""

    values: FloatArray
    version: str | None


def encode(
    inputs: Mapping[str, tuple[str, np.ndarray[Any, Any]]],
    output: str,
    *,
    binary: bool,
    timeout: float,
) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a request.

    `inputs` maps names to the protocol's data type and the values. `timeout` is in seconds, and is
    sent to the server. A server that supports this parameter drops a request that it has not begun
    in this time.
    """
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
    parameters = {"timeout": max(1, round(timeout * _MICROSECONDS))}
    head = msgspec.json.encode({"inputs": described, "outputs": [wanted], "parameters": parameters})
    if not binary:
        return head, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", _JSON_BYTES: str(len(head))}
    return b"".join([head, *raw]), headers


def decode(reply: Reply, output: str, shape: tuple[int, ...]) -> Decoded:
    """Return an output as float32.

    Raises:
        UpstreamUnavailable: the response is invalid, or has no `output` of this `shape`.
    """
    head = reply.body if reply.json_bytes is None else reply.body[: reply.json_bytes]
    try:
        response = msgspec.json.decode(head, type=_Outputs)
    except UNREADABLE:
        raise UpstreamUnavailable("the server's response does not follow the protocol") from None
    at = len(head)
    for tensor in response.outputs:
        size = max(0, tensor.parameters.binary_data_size or 0)
        if tensor.name == output:
            values = _values(tensor, reply.body[at : at + size], shape)
            return Decoded(values, response.model_version)
        at += size
    raise UpstreamUnavailable(f"the server's response lacks the output `{output}`")


def _values(tensor: _Output, raw: bytes, shape: tuple[int, ...]) -> FloatArray:
    kind = FLOATS.get(tensor.datatype)
    if kind is None or tuple(tensor.shape) != shape:
        raise UpstreamUnavailable(
            f"the server's output `{tensor.name}` is {tensor.datatype} of shape {tensor.shape}, "
            f"not floats of shape {list(shape)}"
        )
    try:
        flat = np.frombuffer(raw, kind) if tensor.data is None else np.array(tensor.data, kind)
        with np.errstate(over="ignore"):  # the batcher checks each row for infinity
            values: FloatArray = flat.reshape(shape).astype(np.float32)
    except (ValueError, TypeError, OverflowError):
        raise UpstreamUnavailable(f"the server's output `{tensor.name}` is incomplete") from None
    return values
