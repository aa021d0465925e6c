"""Holds tensors of the Open Inference Protocol v2, for all transports.

A transport builds `InputTensor` objects. Their `data` has one of two forms:

- A list of elements, flat or nested. JSON and gRPC's `bytes_contents` have this form.
- The bytes of all elements. HTTP's binary extension and gRPC's `raw_input_contents` have
  this form.

A transport sends `OutputTensor` objects. `raw` returns the bytes of all elements row by row, in
little-endian order. A `BYTES` element begins with its length in 4 bytes. `json` returns a flat JSON
list of the elements.

Every input has the datatype `BYTES`. The elements are texts in UTF-8. If a model runs its owner's
own algorithm, the elements are JSON.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.vectors import as_bytes, float32_bytes, floats_as_json
from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge

DataType = Literal["BYTES", "FP32", "INT64"]
"""The supported types of elements."""
_LENGTH = struct.Struct("<I")
_MAX_DIMENSIONS = 8
_encode = msgspec.json.encode


class InputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an input as it was received. `texts` validates the input."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Sequence[Any] | bytes
    """A flat or nested list of the elements, or the bytes of all elements."""

    @property
    def rows(self) -> int:
        """The number of rows: the first dimension if there are several, or 1 for a flat list."""
        return self.shape[0] if len(self.shape) > 1 else 1

    def texts(self, *, most: int) -> list[str]:
        """Return the elements row by row.

        Raises:
            InvalidRequest: the datatype, the shape or an element is invalid.
            PayloadTooLarge: the input has more than `most` elements.
        """
        if self.datatype != "BYTES":
            raise self._misfit(f"has the datatype `{self.datatype}`, which must be `BYTES`")
        count = self._count()
        if count > most:
            raise PayloadTooLarge(
                f"The input `{self.name}` has more than {most} elements; send several requests."
            )
        if isinstance(self.data, bytes):
            elements: list[Any] = list(self._split(self.data, count))
        else:
            elements = _flat(self.data)
        if len(elements) != count:
            raise self._misfit(f"has {len(elements)} elements, but its shape has {count}")
        return [self._text(index, element) for index, element in enumerate(elements)]

    def _count(self) -> int:
        if len(self.shape) > _MAX_DIMENSIONS or any(size < 0 for size in self.shape):
            raise self._misfit(
                f"must have at most {_MAX_DIMENSIONS} dimensions, none of them negative"
            )
        return math.prod(self.shape)

    def _split(self, raw: bytes, count: int) -> Iterator[bytes]:
        """Yield at most `count + 1` elements of `raw`. Each element begins with its length."""
        start = 0
        for _ in range(count + 1):
            if start == len(raw):
                return
            end = start + _LENGTH.size
            if end <= len(raw):
                start, end = end, end + _LENGTH.unpack_from(raw, start)[0]
            if end > len(raw):
                raise self._misfit(
                    "ends within an element; send the length of each element before it"
                )
            yield raw[start:end]
            start = end

    def _text(self, index: int, element: object) -> str:
        if isinstance(element, str):
            return element
        if not isinstance(element, bytes):
            raise self._misfit(f"has an element, number {index}, that is not a string")
        try:
            return element.decode()
        except UnicodeDecodeError:
            raise self._misfit(f"has an element, number {index}, that is not UTF-8") from None

    def _misfit(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"The input `{self.name}` {what}.")


class RequestedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Names an output that the request asks for.

    If `classification` is not 0, the output has this number of best labels for each row, instead of
    scores.
    """

    name: str
    classification: int = 0
    is_binary: bool | None = None
    """Whether to send the output as bytes, if the transport can send bytes and JSON. `None` means
    that the setting of the whole request decides."""


class OutputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of output tensors. A subclass holds the elements."""

    name: str
    shape: Sequence[int]
    datatype: DataType = "FP32"

    def raw(self) -> bytes:
        """Return the bytes of all elements."""
        raise NotImplementedError

    def json(self) -> bytes:
        """Return a flat JSON list of the elements."""
        raise NotImplementedError


class TextTensor(OutputTensor, frozen=True, kw_only=True):
    """Holds texts."""

    datatype: DataType = "BYTES"
    texts: Sequence[str]

    @override
    def raw(self) -> bytes:
        encoded = [text.encode() for text in self.texts]
        return b"".join([part for one in encoded for part in (_LENGTH.pack(len(one)), one)])

    @override
    def json(self) -> bytes:
        return _encode(self.texts)


class FloatTensor(OutputTensor, frozen=True, kw_only=True):
    """Holds floats."""

    values: Sequence[float]

    @override
    def raw(self) -> bytes:
        return float32_bytes(self.values)

    @override
    def json(self) -> bytes:
        return _encode(self.values)


class IntegerTensor(OutputTensor, frozen=True, kw_only=True):
    """Holds integers."""

    datatype: DataType = "INT64"
    values: Sequence[int]

    @override
    def raw(self) -> bytes:
        return struct.pack(f"<{len(self.values)}q", *self.values)

    @override
    def json(self) -> bytes:
        return _encode(self.values)


class VectorTensor(OutputTensor, frozen=True, kw_only=True):
    """Holds one vector for each row. `results` are the encoded results of the task `embed`."""

    results: Sequence[bytes]

    @override
    def raw(self) -> bytes:
        return b"".join([as_bytes(result) for result in self.results])

    @override
    def json(self) -> bytes:
        return b"[%b]" % b",".join([floats_as_json(result)[1:-1] for result in self.results])


def _flat(data: Sequence[Any]) -> list[Any]:
    """Return the elements of nested lists in their order."""
    found: list[Any] = []
    waiting = [iter(data)]
    while waiting:
        for element in waiting[-1]:
            if isinstance(element, list | tuple):
                waiting.append(iter(element))
                break
            found.append(element)
        else:
            waiting.pop()
    return found
