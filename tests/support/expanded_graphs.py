"""Expands the operators of packed graphs, for which a CPU has no kernels, to those that it has.

As they are documented: `RemovePadding` gathers the real tokens of rows, `RestorePadding` puts zeros
between them again, and `PackedMultiHeadAttention` is `MultiHeadAttention` of rows with padding.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

_FUSED = "com.microsoft"


class _Padding(msgspec.Struct, frozen=True, kw_only=True):
    """Names the tensors that tell where real tokens are.

    `lengths` [rows] are their numbers, `places` [tokens, 2] their rows and positions, and `size`
    [2] is how many rows and positions there are.
    """

    lengths: str
    places: str
    size: str


def expand(model: ModelProto) -> ModelProto:
    """Return a graph that computes the same by operators that a CPU has."""
    expanded = ModelProto()
    expanded.CopyFrom(model)
    writer = _Writer()
    for node in model.graph.node:
        writer.add(node)
    del expanded.graph.node[:]
    expanded.graph.node.extend(writer.nodes)
    expanded.graph.initializer.extend(writer.constants)
    return expanded


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        # By the output of `RemovePadding` that its consumers are told of.
        self._paddings: dict[str, _Padding] = {}

    def add(self, node: NodeProto) -> None:
        if node.op_type == "RemovePadding":
            self._remove(*node.input, *node.output)
        elif node.op_type == "RestorePadding":
            packed, offsets = node.input
            self._restore(packed, self._paddings[offsets], node.output[0])
        elif node.op_type == "PackedMultiHeadAttention":
            self._attend(node)
        else:
            self.nodes.append(node)

    def _remove(
        self, state: str, lengths: str, packed: str, offsets: str, _ends: str, _longest: str
    ) -> None:
        name = f"{packed}.expanded"
        size = self._node("Shape", [state], f"{name}.size", end=2)
        length = self._node("Shape", [state], f"{name}.length", start=1, end=2)
        width = self._node("Squeeze", [length], f"{name}.width")
        zero, one = (self._constant(f"{name}.{n}", np.array(n)) for n in (0, 1))
        line = self._node("Range", [zero, width, one], f"{name}.line")
        column = self._constant(f"{name}.column", np.array([1]))
        tops = self._node("Unsqueeze", [lengths, column], f"{name}.tops")
        wide = self._node("Cast", [tops], f"{name}.wide", to=TensorProto.INT64)
        real = self._node("Less", [line, wide], f"{name}.real")
        found = self._node("NonZero", [real], f"{name}.found")
        places = self._node("Transpose", [found], f"{name}.places")
        self._paddings[offsets] = _Padding(lengths=lengths, places=places, size=size)
        self._node("GatherND", [state, places], packed)

    def _restore(self, packed: str, padding: _Padding, output: str) -> str:
        hidden = self._node("Shape", [packed], f"{output}.hidden", start=1)
        size = self._node("Concat", [padding.size, hidden], f"{output}.size", axis=0)
        # Of the type of `packed`, whatever that is.
        zeros = self._node("ConstantOfShape", [size], f"{output}.zeros")
        zeros = self._node("CastLike", [zeros, packed], f"{output}.empty")
        return self._node("ScatterND", [zeros, padding.places, packed], output)

    def _attend(self, node: NodeProto) -> None:
        query, key, value, bias, offsets, _, *added = node.input
        padding, (output,) = self._paddings[offsets], node.output
        rows = [
            self._restore(packed, padding, f"{output}.{number}")
            for number, packed in enumerate((query, key, value))
        ]
        attended = self._node(
            "MultiHeadAttention", [*rows, bias, padding.lengths, *added], f"{output}.rows", _FUSED
        )
        self.nodes[-1].attribute.extend(node.attribute)
        self._node("GatherND", [attended, padding.places], output)

    def _node(
        self, operator: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any
    ) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def _constant(self, name: str, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> str:
        self.constants.append(numpy_helper.from_array(numbers, name))
        return name
