"""Renders the stored result of `embed`, JSON floats, in the forms that callers ask for.

The cache has one value for a text; a form is made of it for each answer. `int8` and `uint8` have
255 steps between a vector's own largest absolute value and its negative: cosines are kept, lengths
are not. Numbers beyond those of `float16` become its largest. `binary` and `ubinary` have a bit for
each number, 1 where it is positive, eight to a byte, the first one highest; `binary` shows the
bytes less 128, as numpy's `packbits` is used for it.
"""

import binascii
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

NumberType = Literal["float", "float16", "int8", "uint8", "binary", "ubinary"]
"""What a vector is made of; `float` is float32."""
JsonForm = NumberType | Literal["base64"]
"""What a vector in JSON is made of; `base64` is the bytes of float32."""
_START = b'{"embedding":['
_STEPS = 127
_LARGEST_FLOAT16 = 65_504.0
_LESS_128 = bytes([byte ^ 0x80 for byte in range(256)])
_SIGNED = ("int8", "binary")
_encode = msgspec.json.encode


class _Embedding(msgspec.Struct, frozen=True):
    embedding: list[float]


class _Matrix(msgspec.Struct, frozen=True, omit_defaults=True):
    multi_vector: list[Any]
    multi_vector_tokens: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(_Embedding).decode
_decode_matrix = msgspec.json.Decoder(_Matrix).decode
_MATRIX = b'{"multi_vector":'


def floats_as_json(result: bytes) -> bytes | memoryview:
    """Return the JSON list of numbers in a result, as a part of it and no copy in general."""
    is_plain = result.startswith(_START) and result.find(b'"', len(_START)) < 0
    if is_plain and result.endswith(b"]}"):
        return memoryview(result)[len(_START) - 1 : -1]
    return _encode(_decode(result).embedding)


def as_json(result: bytes, kind: NumberType) -> bytes | memoryview:
    """Return a vector as a JSON list of numbers of that type."""
    return as_all(result, (kind,))[0]


def as_base64(result: bytes, kind: NumberType = "float") -> bytes:
    """Return the bytes of a vector as a JSON string in base64."""
    return _base64(_decode(result).embedding, kind)


def in_form(result: bytes, kind: NumberType, *, packed: bool) -> bytes:
    """Return a result of `embed` with its vectors as lists of numbers, or `packed` as base64.

    A sparse vector stays as it is.
    """
    if result.startswith(_MATRIX):
        found = _decode_matrix(result)
        render = _base64 if packed else _json
        lines = [msgspec.Raw(render(vector, kind)) for vector in found.multi_vector]
        return _encode(_Matrix(lines, found.multi_vector_tokens))
    if not result.startswith(_START[:-1]):
        return result
    form = as_base64(result, kind) if packed else as_json(result, kind)
    return b"".join([_START[:-1], form, b"}"])


def as_bytes(result: bytes, kind: NumberType = "float") -> bytes:
    """Return the numbers of a vector one after another, little-endian."""
    return _PACKERS[kind](_decode(result).embedding)


def as_all(result: bytes, kinds: Sequence[JsonForm]) -> list[bytes | memoryview]:
    """Return a vector as JSON in each form; its numbers are decoded once."""
    values = [] if set(kinds) == {"float"} else _decode(result).embedding
    return [
        floats_as_json(result)
        if kind == "float"
        else _base64(values, "float")
        if kind == "base64"
        else _json(values, kind)
        for kind in kinds
    ]


def float32_bytes(values: Sequence[float]) -> bytes:
    """Return numbers as float32, little-endian; those that are too large become infinite."""
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _json(values: Sequence[float], kind: NumberType) -> bytes:
    if kind == "float":
        return _encode(values)
    packed = _PACKERS[kind](values)
    if kind == "float16":
        return _encode(struct.unpack(f"<{len(values)}e", packed))
    return _encode(memoryview(packed).cast("b" if kind in _SIGNED else "B").tolist())


def _base64(values: Sequence[float], kind: NumberType) -> bytes:
    return b'"%b"' % binascii.b2a_base64(_PACKERS[kind](values), newline=False)


def _float16(values: Sequence[float]) -> bytes:
    try:
        return struct.pack(f"<{len(values)}e", *values)
    except OverflowError:  # a vector that was not normalized
        largest = _LARGEST_FLOAT16
        bounded = [max(-largest, min(value, largest)) for value in values]
        return struct.pack(f"<{len(values)}e", *bounded)


def _int8(values: Sequence[float]) -> bytes:
    largest = max(max(values, default=0.0), -min(values, default=0.0)) or 1.0
    scale = _STEPS / largest
    return array("b", [round(value * scale) for value in values]).tobytes()


def _uint8(values: Sequence[float]) -> bytes:
    return _int8(values).translate(_LESS_128)


def _ubinary(values: Sequence[float]) -> bytes:
    bits = "".join(["1" if value > 0 else "0" for value in values])
    size = (len(bits) + 7) // 8
    return int(bits.ljust(8 * size, "0") or "0", 2).to_bytes(size)


def _binary(values: Sequence[float]) -> bytes:
    return _ubinary(values).translate(_LESS_128)


_PACKERS: dict[NumberType, Callable[[Sequence[float]], bytes]] = {
    "float": float32_bytes,
    "float16": _float16,
    "int8": _int8,
    "uint8": _uint8,
    "binary": _binary,
    "ubinary": _ubinary,
}
