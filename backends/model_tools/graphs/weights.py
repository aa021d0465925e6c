"""Reads the weights of a BERT encoder from a safetensors file, or makes them from a seed."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.model_tools.graphs.shapes import BertShape, weight_shapes

Weights = Mapping[str, NDArray[np.float32]]

_HEADER_LENGTH_BYTES = 8
_DTYPES: dict[str, np.dtype[np.floating[Any]]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


class WeightsError(ValueError):
    """Reports weights that are unreadable or not of the requested shape."""


def read_safetensors(path: Path) -> Weights:
    """Return the floating-point tensors of a safetensors file, as float32.

    float32 tensors are views of the memory-mapped file: nothing is copied.

    Raises:
        WeightsError: the file is missing, cut short or not in this format.
    """
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        length = int.from_bytes(content[:_HEADER_LENGTH_BYTES].tobytes(), "little")
        start = _HEADER_LENGTH_BYTES + length
        header = json.loads(content[_HEADER_LENGTH_BYTES:start].tobytes())
        return {
            name: _tensor(content[start:], entry)
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] in _DTYPES
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"cannot read `{path}` as safetensors: {error}") from error


def _tensor(content: NDArray[np.uint8], entry: dict[str, Any]) -> NDArray[np.float32]:
    begin, end = entry["data_offsets"]
    tensor = content[begin:end].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensor.astype(np.float32, copy=False)


def seeded_weights(shape: BertShape, *, seed: int) -> Weights:
    """Return weights of no meaning but of the real size: equal for equal seeds."""
    random = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {}
    for name, size in weight_shapes(shape).items():
        noise = random.standard_normal(math.prod(size), dtype=np.float32).reshape(size)
        centre = np.float32(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        weights[name] = centre + np.float32(0.02) * noise
    return weights


def check_weights(shape: BertShape, weights: Weights) -> None:
    """Refuse weights that lack a tensor of `shape` or have one of another size.

    Raises:
        WeightsError: names the first tensor that is wrong.
    """
    for name, size in weight_shapes(shape).items():
        if name not in weights:
            raise WeightsError(f"the weight `{name}` is missing")
        if weights[name].shape != size:
            raise WeightsError(f"the weight `{name}` is {weights[name].shape}, not {size}")
