"""Writes attention for GPUs as one fused node.

The rows of a batch are either padded, or packed one after another without padding. Families other
than BERT use this module. The input `attention_mask` marks the real tokens. The caller can add a
bias to the scores.

With padded rows, no node reads a shape. Shapes are computed on the CPU, and a graph that needs the
CPU cannot become a CUDA graph.
"""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from backends.model_tools.graphs.attention import add_ranges
from backends.model_tools.graphs.bert import FIRST
from backends.model_tools.graphs.graph_builder import GraphBuilder
from backends.model_tools.graphs.options import GraphOptions, Output

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
    ) -> str:
        """Append the node that computes attention on query, key and value.

        `bias` names a tensor that is added to the scores. Its shape is
        `[batch or 1, heads or 1, sequence, sequence]`.
        """
        operator = "PackedMultiHeadAttention" if self.is_packed else "MultiHeadAttention"
        given = [*inputs, "", *self._masking, *([bias] if bias else [])]
        scaled = {} if scale is None else {"scale": scale}
        return self._graph.fused(operator, given, prefix, num_heads=heads, **scaled)

    def leave(self, state: str, output: Output) -> None:
        """Append the float32 output: the states of all tokens, or of each row's first token."""
        graph = self._graph
        state = self.pad(state, "rows.restored")
        if output == FIRST:
            first = graph.constant("rows.first", np.array(0, dtype=np.int64))
            state = graph.plain("Gather", [state, first], "rows.firsts", axis=1)
        graph.plain("Cast", [state], output, to=TensorProto.FLOAT)
