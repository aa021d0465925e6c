"""Writes attention as one fused node, for each kind of kernel that `GraphOptions` describes.

`attend_rows` is for BERT, whose operators also add the biases of query, key and value. Other
families use `FusedRows`, to which they can give a bias of the scores.

The rows of a batch are either padded, or packed one after another without padding. With padded
rows, no node reads a shape. Shapes are computed on the CPU, and a graph that needs the CPU cannot
become a CUDA graph.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from onnx import TensorProto

from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.grids import attention_attributes
from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions, Output

_NAMES = ("query", "key", "value")


def attend_rows(
    graph: GraphBuilder,
    kind: Attention,
    prefix: str,
    state: str,
    *,
    heads: int,
    masking: Sequence[str],
) -> str:
    """Append the nodes that compute attention over `state` in one layer.

    Return the name of the result, to which the layer's output projection is not yet applied.
    `masking` names the tensors by which the kernel tells real tokens from padding.
    """
    project = _fused if kind == "fused" else _separate
    inputs = [*project(graph, prefix, state), *masking]
    return graph.fused(_OPERATORS[kind], inputs, prefix, num_heads=heads)


def add_ranges(graph: GraphBuilder, *, mask: str, lengths: str) -> str:
    """Append nodes that compute where rows begin: `[3 * rows + 2]` integers.

    The attention kernel reads this tensor. Its first part is the length of every row. Its second
    part is the index of every row's first token, and then the number of all tokens, including
    padding. Its third part repeats the second part.

    The integers are computed from the values of the inputs, not from their shapes.
    """
    axis = graph.constant("ranges.axis", np.array([1], dtype=np.int64))
    first = graph.constant("ranges.first", np.array([0], dtype=np.int32))
    one = graph.constant("ranges.one", np.array(1, dtype=np.int32))
    zero = graph.constant("ranges.zero", np.array(0, dtype=np.int32))
    rows = graph.constant("ranges.rows", np.array(0, dtype=np.int64))
    graph.plain("Mul", [mask, zero], "ranges.zeros")
    graph.plain("Add", ["ranges.zeros", one], "ranges.ones")
    graph.plain("ReduceSum", ["ranges.ones", axis], "ranges.widths", keepdims=0)
    graph.plain("CumSum", ["ranges.widths", rows], "ranges.ends")
    graph.plain("Concat", [first, "ranges.ends"], "ranges.starts", axis=0)
    starts = ["ranges.starts", "ranges.starts"]
    return graph.plain("Concat", [lengths, *starts], "ranges", axis=0)


def _fused(graph: GraphBuilder, prefix: str, state: str) -> list[str]:
    """Append one weight, `[hidden, 3 * hidden]`, and one bias for query, key and value together."""
    kernel = np.concatenate([graph.weights[f"{prefix}.{name}.weight"].T for name in _NAMES], axis=1)
    return [state, graph.floats(f"{prefix}.weight", kernel), _bias(graph, prefix)]


def _separate(graph: GraphBuilder, prefix: str, state: str) -> list[str]:
    """Append three products, for query, key and value, and one bias for all of them."""
    products = [graph.matmul(f"{prefix}.{name}", state) for name in _NAMES]
    return [*products, _bias(graph, prefix)]


def _bias(graph: GraphBuilder, prefix: str) -> str:
    bias = np.concatenate([graph.weights[f"{prefix}.{name}.bias"] for name in _NAMES])
    return graph.floats(f"{prefix}.bias", bias)


_OPERATORS: Mapping[Attention, str] = MappingProxyType(
    {
        "fused": "Attention",
        "heads": "MultiHeadAttention",
        "ranges": "MultiHeadAttention",
        "packed": "PackedMultiHeadAttention",
    }
)


_MASK = "attention_mask"


class FusedRows:
    """Appends the nodes that compute attention, and the nodes that remove and restore padding.

    States are `[batch, sequence, hidden]`, or `[real tokens, hidden]` if `is_packed`.
    """

    def __init__(self, graph: GraphBuilder, options: GraphOptions) -> None:
        self._graph = graph
        self.is_packed = options.packed
        axis = graph.constant("rows.axis", np.array([1], dtype=np.int64))
        self._lengths = graph.plain("ReduceSum", [_MASK, axis], "rows.lengths", keepdims=0)
        if options.attention == "ranges":
            self._masking = [add_ranges(graph, mask=_MASK, lengths=self._lengths)]
        elif self.is_packed:
            self._masking = ["rows.places", "rows.ends"]
        else:
            self._masking = [self._lengths]

    def enter(self, state: str) -> str:
        """Append nodes that bring `state` `[batch, sequence, hidden]` into the kernel's layout."""
        if not self.is_packed:
            return state
        outputs = ("rows.packed", *self._masking, "rows.longest")
        return self._graph.fused("RemovePadding", [state, self._lengths], *outputs)

    def pad(self, state: str, output: str) -> str:
        """Append nodes that restore the padding of `state`: `[batch, sequence, hidden]`."""
        if not self.is_packed:
            return state
        return self._graph.fused("RestorePadding", [state, "rows.places"], output)

    def rotations(self, places: str) -> str:
        """Append nodes that compute the positions that `RotaryEmbedding` reads.

        For padded rows, the output is the position at which every row begins, int64 `[1]`. For
        packed rows, it is the position of each token, int64 `[tokens, 1]`. `places` is the output
        of `count_places`.
        """
        graph = self._graph
        if not self.is_packed:
            return graph.constant("rows.start", np.array([0], dtype=np.int64))
        # `RemovePadding` takes floats only.
        column = graph.constant("rows.column", np.array([2], dtype=np.int64))
        graph.plain("Cast", [places], "rows.numbers", to=TensorProto.FLOAT)
        graph.plain("Unsqueeze", ["rows.numbers", column], "rows.numbered")
        outputs = [f"rows.numbered.{part}" for part in ("packed", "places", "ends", "longest")]
        graph.fused("RemovePadding", ["rows.numbered", self._lengths], *outputs)
        return graph.plain("Cast", [outputs[0]], "rows.positions", to=TensorProto.INT64)

    def rotate(self, state: str, tables: Sequence[str]) -> str:
        """Append nodes that rotate the heads of each token according to its position.

        `tables` has the names of three tensors: the output of `rotations`, the cosines and the
        sines. If the rows are packed, the operator gets each token as a row of its own, with the
        token's position.
        """
        graph, rotated = self._graph, f"{state}.rotated"
        if not self.is_packed:
            return graph.fused("RotaryEmbedding", [state, *tables], rotated, interleaved=0)
        rows = graph.plain("Unsqueeze", [state, "rows.axis"], f"{state}.row")
        graph.fused("RotaryEmbedding", [rows, *tables], f"{rotated}.row", interleaved=0)
        return graph.plain("Squeeze", [f"{rotated}.row", "rows.axis"], rotated)

    def attend(
        self,
        prefix: str,
        inputs: Sequence[str],
        *,
        heads: int,
        bias: str,
        scale: float | None = None,
        causal: bool = False,
    ) -> str:
        """Append the node that computes attention on query, key and value.

        `bias` names a tensor that is added to the scores. Its shape is
        `[batch or 1, heads or 1, sequence, sequence]`.
        """
        operator = "PackedMultiHeadAttention" if self.is_packed else "MultiHeadAttention"
        given = [*inputs, "", *self._masking, *([bias] if bias else [])]
        attributes = attention_attributes(scale=scale, causal=causal)
        return self._graph.fused(operator, given, prefix, num_heads=heads, **attributes)

    def leave(self, state: str, output: Output) -> None:
        """Append the float32 output: the states of all tokens, or of each row's first token."""
        graph = self._graph
        state = self.pad(state, "rows.restored")
        if output == "first":
            first = graph.constant("rows.first", np.array(0, dtype=np.int64))
            state = graph.plain("Gather", [state, first], "rows.firsts", axis=1)
        graph.plain("Cast", [state], output, to=TensorProto.FLOAT)
