"""Reads the inputs and outputs that an ONNX file declares, without an ONNX runtime.

An ONNX file is a protocol buffer (`onnx.proto`). The reader parses only the fields that lead to
names and shapes, and skips the weights.
"""

import mmap
from pathlib import Path

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.wire_format import Span

# Field numbers of `onnx.proto`.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 5, 11, 12
_TENSOR_NAME = 8
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TYPE_TENSOR = 1
_TENSOR_SHAPE = 2
_SHAPE_DIMENSION = 1
_DIMENSION_VALUE = 1


class GraphValue(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an input or output; a dimension is `None` if it varies between batches."""

    name: str
    shape: list[int | None]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)


class GraphFile(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the inputs and outputs of a graph."""

    inputs: list[GraphValue]
    outputs: list[GraphValue]


def read_graph_file(path: Path) -> GraphFile:
    """Return the inputs and outputs of the graph in `path`.

    Raises:
        ModelProblem: the file cannot be read or is not an ONNX file.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_,
        ):
            return _read(bytes_)
    except OSError as error:
        raise ModelProblem(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, IndexError, UnicodeDecodeError):
        raise ModelProblem(f"{path}: the file is not an ONNX graph") from None


def _read(content: mmap.mmap) -> GraphFile:
    whole = Span(content, 0, len(content))
    graphs = [field for number, field in whole if number == _MODEL_GRAPH]
    if not graphs:
        raise ValueError("no graph")
    inputs: list[GraphValue] = []
    outputs: list[GraphValue] = []
    weights: set[str] = set()
    for number, field in graphs[0]:
        if number == _GRAPH_INPUT:
            inputs.append(_value(field))
        elif number == _GRAPH_OUTPUT:
            outputs.append(_value(field))
        elif number == _GRAPH_INITIALIZER:
            weights.update(part.text() for n, part in field if n == _TENSOR_NAME)
    # Old exporters list their weights among the inputs.
    return GraphFile(inputs=[i for i in inputs if i.name not in weights], outputs=outputs)


def _value(span: Span) -> GraphValue:
    name = ""
    shape: list[int | None] = []
    for number, field in span:
        if number == _VALUE_NAME:
            name = field.text()
        elif number == _VALUE_TYPE:
            shape = [size for n, tensor in field if n == _TYPE_TENSOR for size in _shape(tensor)]
    return GraphValue(name=name, shape=shape)


def _shape(tensor: Span) -> list[int | None]:
    sizes: list[int | None] = []
    for number, shape in tensor:
        if number == _TENSOR_SHAPE:
            for _, dimension in ((n, d) for n, d in shape if n == _SHAPE_DIMENSION):
                known = [d.number for n, d in dimension if n == _DIMENSION_VALUE]
                sizes.append(known[0] if known and known[0] > 0 else None)
    return sizes
