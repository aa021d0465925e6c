"""Reads and writes tensors for HTTP, as JSON or as bytes after the JSON.

In the protocol's binary extension, the header `Inference-Header-Content-Length` is the length of
the JSON. The bytes of the tensors follow the JSON, in the order of the tensors. A tensor's
parameter `binary_data_size` is the number of its bytes.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from sluicegate.gateway.api.inference_route import JSON, Rendered
from sluicegate.gateway.dialects.oip.calls import TensorRequest
from sluicegate.gateway.dialects.oip.tensors import InputTensor, OutputTensor, RequestedOutput
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.body_decoding import BodyDecoder

LENGTH = b"inference-header-content-length"
"""The header with the length of the JSON."""
_BINARY = b"content-type: application/octet-stream\r\n%b: %d\r\n"
_MAX_DIGITS = 10
_encode = msgspec.json.encode


class OipParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a tensor. Unknown parameters are ignored."""

    binary_data_size: int | None = None
    """The number of the tensor's bytes after the JSON. They replace `data`."""
    binary_data: bool | None = None
    """Whether to send the output as bytes."""
    classification: int = 0
    """If not 0, the output `SCORES` has this many best labels, as `score:index:label`."""


_NO_PARAMETERS = OipParameters()


class OipInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of a model."""

    name: str
    """A name from the model's metadata."""
    shape: list[int]
    """The dimensions. Their product is the number of elements."""
    datatype: str
    """Must be `BYTES`."""
    data: list[Any] | None = None
    """The elements, as a flat or nested list."""
    parameters: OipParameters | None = None
    """If the parameter `binary_data_size` is set, the elements follow the JSON."""


class OipWantedOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output that the response should have."""

    name: str
    """A name from the model's metadata."""
    parameters: OipParameters | None = None
    """The format of the output."""


class OipInferBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a model with tensors, as clients of Triton and KServe do."""

    id: str | None = None
    """An id of the caller. The response contains it."""
    inputs: list[OipInput]
    """The inputs of the task."""
    outputs: list[OipWantedOutput] | None = None
    """The outputs that the response should have. The default is all outputs of the task."""
    parameters: dict[str, Any] | None = None
    """The task's parameters. `task` names the task if the inputs do not identify it."""
    model_name: str | None = None
    """Ignored, because the path names the model."""
    model_version: str | None = None
    """Ignored, because the path may name a version."""


class OipOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An output of a model."""

    name: str
    """The name of the output."""
    datatype: str
    """The type of its elements."""
    shape: list[int]
    """The number of rows and the size of a row. There is a row for each item."""
    data: list[Any]
    """The elements, as a flat list. If the elements follow the JSON as bytes, this field is
    omitted, and the parameter `binary_data_size` is the number of bytes."""


class OipInferAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outputs of a model."""

    model_name: str
    """The model's name in the request."""
    model_version: str = ""
    """The version that was used. Omitted if a traffic split divides the items among revisions."""
    id: str = ""
    """The `id` in the request, if it has one."""
    outputs: list[OipOutput]
    """The outputs, in the order of `outputs` in the request, or of the model's metadata."""


_decode = BodyDecoder(OipInferBody)


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a decoded request, and whether outputs are sent as bytes by default."""

    tensors: TensorRequest
    is_binary: bool


def json_part(raw: bytes, length: bytes) -> bytes:
    """Return the JSON at the beginning of a body.

    `length` is the value of the header `Inference-Header-Content-Length`. If `length` is empty, the
    whole body is JSON.

    Raises:
        InvalidRequest: the header is invalid, or larger than the body.
    """
    if not length:
        return raw
    if not length.isdigit() or len(length) > _MAX_DIGITS or int(length) > len(raw):
        raise InvalidRequest(
            "`Inference-Header-Content-Length` must be the number of bytes of the JSON at the"
            " beginning of the body."
        )
    return raw[: int(length)]


def read_request(raw: bytes, length: bytes, only_input: str) -> WireRequest:
    """Return the decoded request. `length` is the value of the header with the JSON's length.

    If the body contains no JSON, the whole body is the only element of an input. This input has the
    name `only_input`.

    Raises:
        InvalidRequest: the number of bytes after the JSON does not agree with the JSON.
        MsgspecError: the JSON is not a valid request.
    """
    head = json_part(raw, length)
    if length and not head:
        tensor = InputTensor(name=only_input, datatype="BYTES", shape=(1, 1), data=[raw])
        return WireRequest(tensors=TensorRequest(inputs=[tensor]), is_binary=True)
    body = _decode(head)
    parameters = body.parameters or {}
    is_binary = parameters.get("binary_data_output")
    is_binary = False if is_binary is None else is_binary
    if not isinstance(is_binary, bool):
        raise InvalidRequest("The parameter `binary_data_output` must be `true` or `false`.")
    outputs = [
        RequestedOutput(
            name=one.name, classification=told.classification, is_binary=told.binary_data
        )
        for one in body.outputs or ()
        for told in [one.parameters or _NO_PARAMETERS]
    ]
    tensors = TensorRequest(
        inputs=_inputs(body.inputs, raw[len(head) :]),
        outputs=outputs,
        parameters=parameters,
        id=body.id or "",
    )
    return WireRequest(tensors=tensors, is_binary=is_binary)


def write_answer(
    names: tuple[str, str, str], tensors: Sequence[OutputTensor], are_binary: Sequence[bool]
) -> Rendered:
    """Return the response. `names` holds the model's name, its version, and the request's id.

    `are_binary` says for each tensor whether it is sent as bytes.
    """
    fields = zip(("model_name", "model_version", "id"), names, strict=True)
    head = [b'"%b":%b,' % (field.encode(), _encode(value)) for field, value in fields if value]
    described: list[bytes] = []
    binary: list[bytes] = []
    for tensor, is_binary in zip(tensors, are_binary, strict=True):
        if is_binary:
            binary.append(tensor.raw())
            content = b'"parameters":{"binary_data_size":%d}' % len(binary[-1])
        else:
            content = b'"data":%b' % tensor.json()
        about = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        described.append(b"%b,%b}" % (_encode(about)[:-1], content))
    json = b'{%b"outputs":[%b]}' % (b"".join(head), b",".join(described))
    if not binary:
        return Rendered(JSON, json)
    return Rendered(_BINARY % (LENGTH, len(json)), b"".join([json, *binary]))


def _inputs(described: Sequence[OipInput], binary: bytes) -> list[InputTensor]:
    """Return the inputs. An input with `binary_data_size` gets its bytes from `binary`."""
    found: list[InputTensor] = []
    start = 0
    for one in described:
        size = (one.parameters or _NO_PARAMETERS).binary_data_size
        data: list[Any] | bytes | None = one.data
        if size is not None:
            end = start + size
            if size < 0 or end > len(binary):
                raise InvalidRequest(
                    f"The input `{one.name}` has a `binary_data_size` of {size}, but only"
                    f" {len(binary) - start} bytes follow."
                )
            data, start = binary[start:end], end
        if data is None:
            raise InvalidRequest(
                f"The input `{one.name}` has neither `data` nor `binary_data_size`; send one."
            )
        found.append(InputTensor(name=one.name, datatype=one.datatype, shape=one.shape, data=data))
    if start < len(binary):
        raise InvalidRequest(
            f"{len(binary) - start} bytes after the JSON belong to no input; set"
            " `binary_data_size` of the inputs to the sizes of their bytes."
        )
    return found
