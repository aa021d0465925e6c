"""Reads and writes tensors over HTTP: as JSON, or as bytes that follow it.

With the binary extension the header `Inference-Header-Content-Length` has the length of the JSON,
in which tensors say how many of the bytes after it are theirs (`binary_data_size`), in their order.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.inference_route import JSON, Rendered
from gateway.dialects.oip.calls import TensorRequest
from gateway.dialects.oip.tensors import InputTensor, OutputTensor, RequestedOutput
from gateway.errors import InvalidRequest
from gateway.http.body_decoding import BodyDecoder

LENGTH = b"inference-header-content-length"
"""The header with the length of the JSON."""
_BINARY = b"content-type: application/octet-stream\r\n%b: %d\r\n"
_MOST_DIGITS = 10
_encode = msgspec.json.encode


class OipParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a tensor; others than these are ignored."""

    binary_data_size: int | None = None
    """Bytes that follow the JSON for it, in place of `data`."""
    binary_data: bool | None = None
    """Whether an output is sent as bytes."""
    classification: int = 0
    """Asks for so many labels of `SCORES`, the best ones, as `score:index:label`."""


_NO_PARAMETERS = OipParameters()


class OipInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of a model."""

    name: str
    """One of those that the model's metadata has."""
    shape: list[int]
    """Its sizes; their product is the number of elements."""
    datatype: str
    """`BYTES`, of every input."""
    data: list[Any] | None = None
    """The elements, flat or in lists of lists."""
    parameters: OipParameters | None = None
    """With `binary_data_size`, the elements are not in `data`."""


class OipWantedOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output that is wanted."""

    name: str
    """One of those that the model's metadata has."""
    parameters: OipParameters | None = None
    """Its form."""


class OipInferBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask a model by tensors, as the clients of Triton and KServe do."""

    id: str | None = None
    """Is repeated in the answer."""
    inputs: list[OipInput]
    """The inputs of the task that is asked for."""
    outputs: list[OipWantedOutput] | None = None
    """The outputs that are wanted; all of the task where it is left out."""
    parameters: dict[str, Any] | None = None
    """What the task takes beside its inputs; `task`, where inputs do not say it."""
    model_name: str | None = None
    """Is ignored: the path names the model."""
    model_version: str | None = None
    """Is ignored: the path may name a version."""


class OipOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An output of a model."""

    name: str
    """What it is."""
    datatype: str
    """The type of its elements."""
    shape: list[int]
    """Its rows, one for each item, and the size of a row."""
    data: list[Any]
    """The elements, flat. Left out where `binary_data_size` of its parameters says how many bytes
    follow the JSON."""


class OipInferAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outputs of a model."""

    model_name: str
    """What the request named it by."""
    model_version: str = ""
    """The version that answered; left out where several share the items."""
    id: str = ""
    """That of the request, if it has one."""
    outputs: list[OipOutput]
    """In the order in which they are wanted, or that of the model's metadata."""


_decode = BodyDecoder(OipInferBody)


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a decoded request, and whether outputs are sent as bytes that do not say it."""

    tensors: TensorRequest
    is_binary: bool


def json_part(raw: bytes, length: bytes) -> bytes:
    """Return what of a body is JSON by the value of the header, which may be empty.

    Raises:
        InvalidRequest: the header does not fit the body.
    """
    if not length:
        return raw
    if not length.isdigit() or len(length) > _MOST_DIGITS or int(length) > len(raw):
        raise InvalidRequest(
            "`Inference-Header-Content-Length` must be the number of bytes of the JSON at the"
            " beginning of the body."
        )
    return raw[: int(length)]


def read_request(raw: bytes, length: bytes, only_input: str) -> WireRequest:
    """Return a request; where it has no JSON, all of it is the one element of `only_input`.

    Raises:
        InvalidRequest: the bytes are not those that the JSON says.
        MsgspecError: the JSON is not that of a request.
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
    """Return the answer with the names of model and version and the request's id.

    `are_binary` says of each tensor whether it is sent as bytes.
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
    """Return the inputs, with what of the bytes after the JSON is theirs."""
    found: list[InputTensor] = []
    start = 0
    for one in described:
        size = (one.parameters or _NO_PARAMETERS).binary_data_size
        data: list[Any] | bytes | None = one.data
        if size is not None:
            end = start + size
            if size < 0 or end > len(binary):
                raise InvalidRequest(
                    f"The input `{one.name}` has a `binary_data_size` of {size}, and there are"
                    f" {len(binary) - start} bytes for it."
                )
            data, start = binary[start:end], end
        if data is None:
            raise InvalidRequest(f"The input `{one.name}` has no `data`.")
        found.append(InputTensor(name=one.name, datatype=one.datatype, shape=one.shape, data=data))
    if start < len(binary):
        raise InvalidRequest(
            f"{len(binary) - start} bytes after the JSON are no input's: say whose they are by"
            " `binary_data_size`."
        )
    return found
