"""Writes safetensors files in the number formats of checkpoints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]


def write_safetensors(path: Path, tensors: Tensors, *, dtype: str = "F32") -> None:
    """Write tensors as float32, or rounded to `F16`, `F64`, or `BF16` (by cutting digits off)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    contents, end = [], 0
    for name, tensor in tensors.items():
        content = _bytes(np.ascontiguousarray(tensor, dtype=np.float32), dtype)
        start, end = end, end + len(content)
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]}
        contents.append(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(contents))


def _bytes(tensor: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "BF16":
        return (tensor.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    return tensor.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()
