"""Writes large weights to a file beside their graph.

An ONNX file has at most 2 GiB. Therefore the weights of larger graphs are in a second file (ONNX's
external data), from which ONNX Runtime maps them into memory. So are the weights that a merged
adapter leaves as they are: models with adapters of one base share this file.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_model,
    uses_external_data,
)

from sluicegate.backends.repository.publishing import link_or_copy

NAME, CHANGED = "model.weights", "adapter.weights"
# Graphs with more bytes of weights have a second file.
MOST_INSIDE = 1024**3
_LEAST_BYTES = 1024
# The most bytes of an ONNX file, less some for the names of its parts.
MOST_BYTES = 2**31 - 2**20
# ONNX Runtime maps only tensors that begin at a page.
_PAGE = 4096


def is_large(weights: Iterable[NDArray[np.float32]]) -> bool:
    """Return whether the graph of the weights needs a second file."""
    return sum(tensor.nbytes for tensor in weights) > MOST_INSIDE


@contextmanager
def temporary_graph(graph: bytes, beside: Path) -> Iterator[Path]:
    """Write a graph to a temporary file, which exists while the context is open.

    Weights of the graph `beside`, to which the graph may refer, get a second name or are copied.
    """
    shared = [path for name in (NAME, CHANGED) if (path := beside.with_name(name)).is_file()]
    folder = beside.parent if shared else None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".trial-") as made:
        for weights in shared:
            link_or_copy(weights, Path(made, weights.name))
        path = Path(made, "model.onnx")
        path.write_bytes(graph)
        yield path


def include_weights(graph: bytes, beside: Path) -> bytes:
    """Return a graph with its weights inside, or the same graph if they are too large.

    A variant in int8 needs few of the weights of the graph `beside`.
    """
    model = ModelProto.FromString(graph)
    apart = [each for each in model.graph.initializer if uses_external_data(each)]
    sizes = [ExternalDataInfo(each).length or 0 for each in apart]
    if not apart or len(graph) + sum(sizes) > MOST_BYTES:
        return graph
    load_external_data_for_model(model, str(beside.parent))
    whole: bytes = model.SerializeToString()
    return whole


class WeightFile:
    """Appends weights to a file in a folder."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self._name, self._file = name, (folder / name).open("wb")

    def add(self, name: str, tensor: NDArray[np.float32]) -> TensorProto | None:
        """Write a tensor, and return the reference to it; `None` for a small tensor."""
        if tensor.nbytes < _LEAST_BYTES:
            return None
        at = -(-self._file.tell() // _PAGE) * _PAGE
        self._file.seek(at)
        self._file.write(np.ascontiguousarray(tensor, dtype="<f4").data)
        stored = TensorProto(name=name, dims=tensor.shape, data_type=TensorProto.FLOAT)
        stored.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._name), ("offset", at), ("length", tensor.nbytes)):
            stored.external_data.add(key=key, value=str(value))
        return stored

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()
