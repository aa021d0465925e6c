"""Reads the weights of an encoder from a safetensors file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.shapes import BertShape, weight_shapes

Weights = Mapping[str, NDArray[np.float32]]

_HEADER_LENGTH_BYTES = 8
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
# Integer and boolean tensors are counters and masks, which no graph needs.
_NO_WEIGHTS = ("I", "U", "BOOL")


class WeightsError(ValueError):
    """Says that weights cannot be read, or that no graph can be built for a checkpoint."""


def require(config: Mapping[str, Any], values: Mapping[str, Sequence[object]]) -> None:
    """Refuse a configuration in which a field has none of its `values`; fields may be absent.

    Raises:
        WeightsError: a field has another value; the message names the field.
    """
    for field, known in values.items():
        if config.get(field, known[0]) not in known:
            raise WeightsError(f"`{field}` must be `{known[0]}`, not `{config[field]}`")


def read_safetensors(path: Path) -> Weights:
    """Return the floating-point tensors of a safetensors file as float32.

    float32 tensors are views of the memory-mapped file, without a copy.

    Raises:
        WeightsError: the file is missing, truncated or not a safetensors file.
    """
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        length = int.from_bytes(content[:_HEADER_LENGTH_BYTES].tobytes(), "little")
        start = _HEADER_LENGTH_BYTES + length
        header = json.loads(content[_HEADER_LENGTH_BYTES:start].tobytes())
        header.pop("__metadata__", None)
        _check_length(len(content), start, header)
        return {
            name: _tensor(content[start:], entry)
            for name, entry in header.items()
            if not entry["dtype"].startswith(_NO_WEIGHTS)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"cannot read `{path}` as safetensors: {error}") from error


def _check_length(length: int, start: int, header: dict[str, Any]) -> None:
    whole = start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if length < whole:
        raise ValueError(f"the file is cut short: {length} of {whole} bytes; copy it again")


def _tensor(content: NDArray[np.uint8], entry: dict[str, Any]) -> NDArray[np.float32]:
    begin, end = entry["data_offsets"]
    kind = entry["dtype"]
    if kind not in _DTYPES:
        raise ValueError(f"weights in {kind} are not supported; save them in float32 or bfloat16")
    tensor = content[begin:end].view(_DTYPES[kind]).reshape(entry["shape"])
    if kind == "BF16":
        # bfloat16 is the upper half of a float32.
        return (tensor.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return tensor.astype(np.float32, copy=False)


def check_weights(shape: BertShape, weights: Weights) -> None:
    """Refuse weights in which a tensor of `shape` is missing or has the wrong size.

    Raises:
        WeightsError: a tensor is wrong; the message names the first one.
    """
    for name, size in weight_shapes(shape).items():
        if name not in weights:
            raise WeightsError(f"the weight `{name}` is missing")
        if weights[name].shape != size:
            raise WeightsError(f"the weight `{name}` is {weights[name].shape}, not {size}")
