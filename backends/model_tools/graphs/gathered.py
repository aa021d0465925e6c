"""Writes encoder layers that compute real tokens only, for CPUs.

States are `[tokens, hidden]`: the tokens of all rows, one row after another, without padding. Only
attention needs rows of equal length. For attention, query, key and value are laid out on a grid,
`[batch, sequence, hidden]`. A place of the grid without a token of its own repeats a token of its
row. Rows of similar length share a grid (see `LengthGrids`). If a bias is added to the scores, all
rows share one grid.
"""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from backends.model_tools.graphs.graph_builder import GraphBuilder
from backends.model_tools.graphs.length_classes import LengthGrids
from backends.model_tools.graphs.padded import PaddedGrid

# This is added to the score of a free place. A free place repeats a real token of its row, so its
# weight is at most e^-40 of the row's largest weight, which rounding removes. ONNX Runtime's
# default, -10000, gives denormal weights, with which attention takes twice as long.
_FREE = -40.0


class Grid:
    """Holds the names of the tensors that map tokens to places of the grid.

    `places` `[tokens, 2]` is the row and position of each token. `filled` `[batch, sequence]` is
    the index of the token at each place. `lengths` `[batch]` is the number of tokens in each row.
    """

    def __init__(self, graph: GraphBuilder, mask: str) -> None:
        """Append the nodes that read `mask`, int32 `[batch, sequence]`, padded on the right."""
        self._graph = graph
        line = graph.constant("grid.line", np.array([-1], dtype=np.int64))
        first = graph.constant("grid.first", np.array(0, dtype=np.int64))
        second = graph.constant("grid.second", np.array([1], dtype=np.int64))
        one = graph.constant("grid.one", np.array(1, dtype=np.int32))
        zero = graph.constant("grid.zero", np.array(0, dtype=np.int32))
        graph.plain("NonZero", [mask], "grid.found")
        self.places = graph.plain("Transpose", ["grid.found"], "grid.places")
        self.lengths = graph.plain("ReduceSum", [mask, second], "grid.lengths", keepdims=0)
        graph.plain("Reshape", [mask, line], "grid.flat")
        graph.plain("CumSum", ["grid.flat", first], "grid.counted")
        graph.plain("Sub", ["grid.counted", one], "grid.last")
        # For an empty first row, the index would be -1.
        graph.plain("Max", ["grid.last", zero], "grid.token")
        graph.plain("Shape", [mask], "grid.shape")
        self.filled = graph.plain("Reshape", ["grid.token", "grid.shape"], "grid.filled")
        self._first = first
        self._mask = mask
        self._classes: LengthGrids | None = None

    def take(self, padded: str, output: str) -> str:
        """Append a node that takes the real tokens of `padded`: `[tokens, ...]`."""
        return self._graph.plain("GatherND", [padded, self.places], output)

    def fill(self, tokens: str, output: str) -> str:
        """Append a node that lays out `tokens` on the grid: `[batch, sequence, hidden]`."""
        return self._graph.plain("Gather", [tokens, self.filled], output)

    def fill_for_sum(self, tokens: str, output: str) -> tuple[str, str]:
        """Append a grid of `tokens` with three more places in each row; return it and its mask.

        `pad_for_sum` explains the additional places.
        """
        mask = pad_for_sum(self._graph, self._mask, f"{output}.mask")
        # "edge" repeats a token of the same row. Another row's token may be NaN.
        filled = pad_for_sum(self._graph, self.filled, f"{output}.filled", mode="edge")
        return self._graph.plain("Gather", [tokens, filled], output), mask

    def first(self, tokens: str, output: str) -> str:
        """Append a node that takes the first token of every row of `tokens`: `[batch, hidden]`."""
        rows = self._graph.plain("Gather", [self.filled, self._first], f"{output}.rows", axis=1)
        return self._graph.plain("Gather", [tokens, rows], output)

    def positions(self) -> str:
        """Append nodes that compute each token's position in its row: int32 `[tokens]`."""
        column = self._graph.constant("grid.column", np.array(1, dtype=np.int64))
        columns = self._graph.plain("Gather", [self.places, column], "grid.columns", axis=1)
        return self._graph.plain("Cast", [columns], "grid.positions", to=TensorProto.INT32)

    def attend(self, prefix: str, inputs: Sequence[str], *, heads: int, bias: str) -> str:
        """Append the node that computes attention on rows of query, key and value."""
        return self._graph.fused(
            "MultiHeadAttention",
            [*inputs, "", self.lengths, bias],
            f"{prefix}.grid",
            num_heads=heads,
            mask_filter_value=_FREE,
        )

    def attend_by_length(self, prefix: str, inputs: Sequence[str], *, heads: int) -> str:
        """Append attention on query, key and value `[tokens, hidden]`, without a bias."""
        if self._classes is None:
            self._classes = LengthGrids(
                self._graph, mask=self._mask, lengths=self.lengths, places=self.places
            )
        return self._classes.attend(prefix, inputs, heads=heads, mask_value=_FREE)


def pad_for_sum(
    graph: GraphBuilder, values: str, output: str, *, rank: int = 2, mode: str = "constant"
) -> str:
    """Append nodes that give each row of `values` `[batch, sequence, ...]` three more places.

    The caller sums over the places. The matrix kernel sums four products at a time, but sums the
    last one to three products in another order. With three more places, the bits of a sum do not
    depend on the width of the batch.
    """
    sizes = np.zeros(2 * rank, dtype=np.int64)
    sizes[rank + 1] = 3
    pads = graph.constant(f"{output}.pads", sizes)
    return graph.plain("Pad", [values, pads], output, mode=mode)


def open_grid(graph: GraphBuilder, *, width: int) -> Grid | PaddedGrid:
    """Append the nodes of a grid and return it; `width` is the width of an attention head."""
    if graph.is_plain:
        return PaddedGrid(graph, "attention_mask", width=width)
    return Grid(graph, "attention_mask")


def count_positions(graph: GraphBuilder, padding: int) -> str:
    """Append nodes that compute the position of each token in its row.

    The output is int32 `[batch, sequence]`. Positions begin at 1, and count only tokens whose id is
    not `padding`. A token with the id `padding` has position 0.
    """
    token = graph.constant("positions.padding", np.array(padding, dtype=np.int32))
    zero = graph.constant("positions.zero", np.array(0, dtype=np.int32))
    axis = graph.constant("positions.axis", np.array(1, dtype=np.int64))
    graph.plain("Equal", ["input_ids", token], "positions.free")
    # The mask also marks padding, because a batch may be padded with another id.
    graph.plain("Where", ["positions.free", zero, "attention_mask"], "positions.taken")
    graph.plain("CumSum", ["positions.taken", axis], "positions.counted")
    return graph.plain("Mul", ["positions.counted", "positions.taken"], "positions")


def embed_tokens(
    graph: GraphBuilder, grid: Grid | PaddedGrid, *, epsilon: float, padding: int | None
) -> str:
    """Append nodes that embed the tokens; with a `Grid`, the output is `[tokens, hidden]`.

    If `padding` is given, positions come from `count_positions`.
    """
    if padding is None:
        positions = grid.positions()
    else:
        positions = grid.take(count_positions(graph, padding), "positions.real")
    if isinstance(grid, PaddedGrid):
        return grid.embed(positions, epsilon=epsilon)
    prefix = "embeddings"
    row = graph.constant("grid.row", np.array([0], dtype=np.int64))
    tokens = (
        grid.take("input_ids", "input_ids.real"),
        grid.take("token_type_ids", "token_type_ids.real"),
        positions,
    )
    # The kernel reads rows, so all tokens together are one row, with explicit positions.
    ids, kinds, places = (graph.plain("Unsqueeze", [name, row], f"{name}.row") for name in tokens)
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    weights = [graph.weight(f"{prefix}.{table}.weight") for table in tables]
    inputs = [ids, kinds, *weights, *graph.norm(f"{prefix}.LayerNorm"), "", places]
    outputs = (f"{prefix}.row", "")
    state = graph.fused("EmbedLayerNormalization", inputs, *outputs, epsilon=epsilon)
    return graph.plain("Squeeze", [state, row], prefix)


def attend_gathered(
    grid: Grid | PaddedGrid, prefix: str, inputs: Sequence[str], *, heads: int, bias: str
) -> str:
    """Append attention on query, key and value `[tokens, hidden]`.

    Return the name of the output, which has the same shape.

    `bias` names the tensor `[1, heads, sequence, sequence]` that is added to the scores; it is
    empty if nothing is added.
    """
    if isinstance(grid, Grid) and not bias:
        return grid.attend_by_length(prefix, inputs, heads=heads)
    rows = [grid.fill(name, f"{name}.grid") for name in inputs]
    return grid.take(grid.attend(prefix, rows, heads=heads, bias=bias), prefix)


def attend_first(
    graph: GraphBuilder,
    grid: Grid | PaddedGrid,
    prefix: str,
    inputs: Sequence[str],
    *,
    heads: int,
    bias: str,
) -> str:
    """Append attention for the first token of every row; the output is `[batch, hidden]`.

    The query is `[batch, hidden]`. Key, value and `bias` are as in `attend_gathered`.
    """
    query, *others = inputs
    axis = graph.constant("first.axis", np.array([1], dtype=np.int64))
    rows = [graph.plain("Unsqueeze", [query, axis], f"{query}.grid")]
    rows += [grid.fill(name, f"{name}.grid") for name in others]
    if bias:
        place = graph.constant("first.place", np.array([0], dtype=np.int64))
        bias = graph.plain("Gather", [bias, place], "first.bias", axis=2)
    context = grid.attend(prefix, rows, heads=heads, bias=bias)
    return graph.plain("Squeeze", [context, axis], prefix)
