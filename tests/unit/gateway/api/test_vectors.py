"""A stored vector is rendered in each form with the numbers that numpy makes of it."""

import base64
from typing import Any

import msgspec
import numpy as np
import pytest

from sluicegate.gateway.api.vectors import NumberType, as_base64, as_bytes, as_json

_VALUES = np.random.default_rng(7).normal(size=384).astype(np.float32)
_RESULT = msgspec.json.encode({"embedding": _VALUES.astype(float).tolist()})
_SCALED = np.rint(_VALUES.astype(float) * (127 / np.abs(_VALUES.astype(float)).max()))
_BITS = np.packbits(_VALUES > 0)
_FORMS: dict[NumberType, Any] = {
    "float": _VALUES.astype("<f4"),
    "float16": _VALUES.astype("<f2"),
    "int8": _SCALED.astype(np.int8),
    "uint8": (_SCALED + 128).astype(np.uint8),
    "ubinary": _BITS,
    "binary": (_BITS.astype(np.int16) - 128).astype(np.int8),
}


@pytest.mark.parametrize("kind", _FORMS)
def test_every_form_has_the_numbers_of_numpy(kind: NumberType) -> None:
    expected = _FORMS[kind]

    assert as_bytes(_RESULT, kind) == expected.tobytes()
    assert np.array(
        msgspec.json.decode(bytes(as_json(_RESULT, kind))), expected.dtype
    ).tobytes() == (expected.tobytes())
    assert base64.b64decode(msgspec.json.decode(as_base64(_RESULT, kind))) == expected.tobytes()


def test_quantized_vectors_point_where_the_vector_does() -> None:
    for kind in ("int8", "uint8"):
        numbers = np.array(msgspec.json.decode(as_json(_RESULT, kind)), float)
        numbers -= 128 if kind == "uint8" else 0
        norms = np.linalg.norm(numbers) * np.linalg.norm(_VALUES)

        assert numbers @ _VALUES / norms > 0.9999


@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_the_last_byte_of_bits_is_filled_with_zeros(size: int) -> None:
    result = msgspec.json.encode({"embedding": [1.0] * size})

    assert as_bytes(result, "ubinary") == np.packbits([True] * size).tobytes()


def test_a_vector_of_zeros_has_every_form() -> None:
    for kind in _FORMS:
        assert as_bytes(b'{"embedding":[0.0,0.0]}', kind)


def test_floats_are_those_of_the_result_to_the_letter() -> None:
    assert as_json(b'{"embedding":[0.10,1e-9]}', "float") == b"[0.10,1e-9]"
    assert as_json(b'{ "embedding": [0.5] }', "float") == b"[0.5]"
    assert as_json(b'{"embedding":[0.5],"more":[1]}', "float") == b"[0.5]"


def test_numbers_too_large_for_float16_become_its_largest() -> None:
    result = b'{"embedding":[1e6,-1e6,1.5]}'

    assert msgspec.json.decode(as_json(result, "float16")) == [65504.0, -65504.0, 1.5]
