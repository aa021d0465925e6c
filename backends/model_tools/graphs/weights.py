"""Reads tensors from a safetensors file."""

import json
from collections.abc import Callable, Mapping, Sequence
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
_INTEGERS: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
}
# Most models use integer and boolean tensors only as counters and masks, which no graph needs.
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
    tensors, _ = _read(path, lambda kind: not kind.startswith(_NO_WEIGHTS))
    return {name: tensor.astype(np.float32, copy=False) for name, tensor in tensors.items()}


def read_tensors(path: Path) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, str]]:
    """Return all tensors of a safetensors file in their own number formats, and the metadata.

    A tensor in bfloat16 becomes float32.

    Raises:
        WeightsError: the file is missing, truncated or not a safetensors file.
    """
    return _read(path, lambda _: True)


def _read(
    path: Path, needs: Callable[[str], bool]
) -> tuple[dict[str, NDArray[Any]], Mapping[str, str]]:
    try:
        if path.stat().st_size < _HEADER_LENGTH_BYTES:
            raise ValueError("the file is empty or cut short; copy it again")
        content = np.memmap(path, dtype=np.uint8, mode="r")
        length = int.from_bytes(content[:_HEADER_LENGTH_BYTES].tobytes(), "little")
        start = _HEADER_LENGTH_BYTES + length
        if start > len(content):
            raise ValueError("it is another kind of file, or is cut short; copy it again")
        header = json.loads(content[_HEADER_LENGTH_BYTES:start].tobytes())
        metadata = header.pop("__metadata__", None) or {}
        _check_length(len(content), start, header)
        found = {
            name: _tensor(content[start:], entry)
            for name, entry in header.items()
            if needs(entry["dtype"])
        }
    except (
        *(OSError, ValueError, LookupError, TypeError, AttributeError),
        RecursionError,  # the header nests too deeply
    ) as error:
        raise WeightsError(f"cannot read `{path}` as safetensors: {error}") from error
    return found, metadata


def _check_length(length: int, start: int, header: dict[str, Any]) -> None:
    """Refuse a file that is cut short, or whose tensors share bytes.

    A small file in which many tensors share bytes would need much memory.
    """
    places = sorted((*entry["data_offsets"][:2],) for entry in header.values())
    whole = start + max((end for _, end in places), default=0)
    if length < whole:
        raise ValueError(f"the file is cut short: {length} of {whole} bytes; copy it again")
    before = 0
    for begin, end in places:
        if begin < before or end < begin:
            raise ValueError("its tensors share bytes; save the weights again")
        before = end


def _tensor(content: NDArray[np.uint8], entry: dict[str, Any]) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    kind = entry["dtype"]
    known = _DTYPES.get(kind) or _INTEGERS.get(kind)
    if known is None:
        raise ValueError(f"weights in {kind} are not supported; save them in float32 or bfloat16")
    tensor: NDArray[Any] = content[begin:end].view(known).reshape(entry["shape"])
    if kind == "BF16":
        # bfloat16 is the upper half of a float32.
        return (tensor.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return tensor


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
