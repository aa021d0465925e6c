"""Writes the nodes of `plain` graphs, in which all rows keep their padding.

The nodes use only ONNX's own operators, and read sizes from the shapes of the inputs. So a compiler
such as TensorRT can compile the whole graph, and fuse attention and GELU itself.
"""

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from backends.model_tools.graphs.graph_builder import GraphBuilder

# This is added to the scores of padding. Rounding then removes its weight. The weight is not a
# denormal number, which would be slow on a CPU.
_PADDING = -80.0


def add_padding_scores(graph: GraphBuilder, mask: str) -> str:
    """Append a tensor that masks padding if it is added to scores: `[batch, 1, 1, sequence]`."""
    axes = graph.constant("mask.axes", np.array([1, 2], dtype=np.int64))
    one = graph.constant("mask.one", np.array(1, dtype=np.float32))
    least = graph.constant("mask.padding", np.array(_PADDING, dtype=np.float32))
    graph.plain("Cast", [mask], "mask.real", to=TensorProto.FLOAT)
    graph.plain("Sub", [one, "mask.real"], "mask.free")
    graph.plain("Mul", ["mask.free", least], "mask.scores")
    return graph.plain("Unsqueeze", ["mask.scores", axes], "padding")


class PaddedGrid:
    """Has the methods of `Grid`, but keeps tokens in their rows: `[batch, sequence, ...]`."""

    def __init__(self, graph: GraphBuilder, mask: str, *, width: int) -> None:
        """Append the nodes that read `mask`, int32 `[batch, sequence]`.

        `width` is a head's width.
        """
        self._graph = graph
        self._scale = graph.constant(
            "padded.scale", np.array(1 / math.sqrt(width), dtype=np.float32)
        )
        self._joined = graph.constant("padded.joined", np.array([0, 0, -1], dtype=np.int64))
        self._first = graph.constant("padded.first", np.array(0, dtype=np.int64))
        self._padding = add_padding_scores(graph, mask)

    def take(self, padded: str, output: str) -> str:
        """Append a copy of `padded` named `output`, because this grid moves no tokens."""
        return self._graph.plain("Identity", [padded], output)

    def fill(self, tokens: str, output: str) -> str:
        """Append a copy of `tokens` named `output`, because this grid moves no tokens."""
        return self._graph.plain("Identity", [tokens], output)

    def first(self, tokens: str, output: str) -> str:
        """Append a node that takes the first token of every row of `tokens`: `[batch, hidden]`."""
        return self._graph.plain("Gather", [tokens, self._first], output, axis=1)

    def positions(self) -> str:
        """Append nodes that compute the position of every place of a row: int64 `[sequence]`."""
        graph = self._graph
        zero = graph.constant("padded.zero", np.array(0, dtype=np.int64))
        step = graph.constant("padded.step", np.array(1, dtype=np.int64))
        graph.plain("Shape", ["input_ids"], "padded.shape", start=1, end=2)
        graph.plain("Squeeze", ["padded.shape"], "padded.length")
        return graph.plain("Range", [zero, "padded.length", step], "padded.positions")

    def embed(self, positions: str, *, epsilon: float) -> str:
        """Append nodes that embed the tokens as BERT does: `[batch, sequence, hidden]`."""
        graph, prefix = self._graph, "embeddings"
        tokens = {
            "word": "input_ids",
            "position": positions,
            "token_type": "token_type_ids",
        }
        words, places, kinds = (
            graph.plain(
                "Gather",
                [graph.weight(f"{prefix}.{table}_embeddings.weight"), ids],
                f"{prefix}.{table}",
            )
            for table, ids in tokens.items()
        )
        # The fused operator adds the embeddings in this order, too.
        graph.plain("Add", [words, kinds], f"{prefix}.typed")
        graph.plain("Add", [f"{prefix}.typed", places], f"{prefix}.summed")
        return graph.layer_norm(f"{prefix}.LayerNorm", f"{prefix}.summed", prefix, epsilon=epsilon)

    def attend(self, prefix: str, inputs: Sequence[str], *, heads: int, bias: str) -> str:
        """Append nodes that compute attention on rows of query, key and value."""
        graph = self._graph
        sizes = graph.constant(f"{prefix}.sizes", np.array([0, 0, heads, -1], dtype=np.int64))
        query, key, value = (
            graph.plain("Reshape", [name, sizes], f"{name}.heads") for name in inputs
        )
        graph.plain("Transpose", [query], f"{prefix}.query.turned", perm=[0, 2, 1, 3])
        graph.plain("Transpose", [key], f"{prefix}.key.turned", perm=[0, 2, 3, 1])
        graph.plain("Transpose", [value], f"{prefix}.value.turned", perm=[0, 2, 1, 3])
        graph.plain(
            "MatMul", [f"{prefix}.query.turned", f"{prefix}.key.turned"], f"{prefix}.products"
        )
        scores = graph.plain("Mul", [f"{prefix}.products", self._scale], f"{prefix}.scaled")
        if bias:
            scores = graph.plain("Add", [scores, bias], f"{prefix}.placed")
        graph.plain("Add", [scores, self._padding], f"{prefix}.scores")
        graph.plain("Softmax", [f"{prefix}.scores"], f"{prefix}.shares", axis=-1)
        graph.plain("MatMul", [f"{prefix}.shares", f"{prefix}.value.turned"], f"{prefix}.context")
        graph.plain("Transpose", [f"{prefix}.context"], f"{prefix}.rows", perm=[0, 2, 1, 3])
        return graph.plain("Reshape", [f"{prefix}.rows", self._joined], f"{prefix}.joined")
