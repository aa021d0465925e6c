"""Writes encoder layers for CPUs and compilers: where tokens lie, and attention between them.

With a `Grid`, layers compute real tokens only. States are `[tokens, hidden]`: the tokens of all
rows, one row after another, without padding. Only attention needs rows of equal length. For
attention, query, key and value are laid out on a grid, `[batch, sequence, hidden]`. A place of the
grid without a token of its own repeats a token of its row. Rows of similar length share a grid (see
`LengthGrids`). If a bias is added to the scores, all rows share one grid.

With a `PaddedGrid`, all rows keep their padding. The nodes use only ONNX's own operators, and read
sizes from the shapes of the inputs. So a compiler such as TensorRT can compile the whole graph, and
fuse attention and GELU itself.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
from onnx import TensorProto

from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder

# This is added to the score of a free place. A free place repeats a real token of its row, so its
# weight is at most e^-40 of the row's largest weight, which rounding removes. ONNX Runtime's
# default, -10000, gives denormal weights, with which attention takes twice as long.
_FREE = -40.0
# This is added to the scores of padding. Rounding then removes its weight. The weight is not a
# denormal number, which would be slow on a CPU.
_PADDING = -80.0
# This is added to the scores of later tokens in causal attention. The scores of decoders can be far
# apart, so it must be exact.
_UNSEEN = -10000.0
# The widths of all classes except the last one, which is as wide as the longest row. These widths
# suit sentences. Each class adds about six small nodes to a layer, even if it has no rows.
WIDTHS = (12, 20)


class Grid:
    """Holds the names of the tensors that map tokens to places of the grid.

    `places` `[tokens, 2]` is the row and position of each token. `filled` `[batch, sequence]` is
    the index of the token at each place. `lengths` `[batch]` is the number of tokens in each row.
    """

    def __init__(self, graph: GraphBuilder, mask: str, *, causal: bool = False) -> None:
        """Append the nodes that read `mask`, int32 `[batch, sequence]`, padded on the right.

        For `causal`, see `open_grid`.
        """
        self._graph = graph
        self._causal = causal
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

    def first(self, tokens: str, output: str) -> str:
        """Append a node that takes the first token of every row of `tokens`: `[batch, hidden]`."""
        rows = self._graph.plain("Gather", [self.filled, self._first], f"{output}.rows", axis=1)
        return self._graph.plain("Gather", [tokens, rows], output)

    def positions(self) -> str:
        """Append nodes that compute each token's position in its row: int32 `[tokens]`."""
        column = self._graph.constant("grid.column", np.array(1, dtype=np.int64))
        columns = self._graph.plain("Gather", [self.places, column], "grid.columns", axis=1)
        return self._graph.plain("Cast", [columns], "grid.positions", to=TensorProto.INT32)

    def attend(
        self,
        prefix: str,
        inputs: Sequence[str],
        *,
        heads: int,
        bias: str,
        scale: float | None = None,
    ) -> str:
        """Append the node that computes attention on rows of query, key and value."""
        return self._graph.fused(
            "MultiHeadAttention",
            # No token sees the free places at the end of a causal row.
            [*inputs, "", "" if self._causal else self.lengths, bias],
            f"{prefix}.grid",
            num_heads=heads,
            mask_filter_value=_FREE,
            **attention_attributes(scale=scale, causal=self._causal),
        )

    def attend_by_length(
        self, prefix: str, inputs: Sequence[str], *, heads: int, scale: float | None = None
    ) -> str:
        """Append attention on query, key and value `[tokens, hidden]`, without a bias."""
        if self._classes is None:
            self._classes = LengthGrids(
                self._graph, mask=self._mask, lengths=self.lengths, places=self.places
            )
        attributes = attention_attributes(scale=scale, causal=self._causal)
        return self._classes.attend(
            prefix, inputs, heads=heads, mask_value=_FREE, attributes=attributes
        )


class _LengthGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the names of the tensors of one class.

    `rows` are the indices of the class's rows, `lengths` the numbers of tokens in them, and
    `widths` repeats the width of the class for each row. `filled` `[rows of the class, width]` is
    the index of the token at each place.
    """

    rows: str
    lengths: str
    widths: str
    filled: str


class LengthGrids:
    """Holds the names of the tensors that lay out rows on grids, one for each class of lengths.

    Each class is padded to its own width, so a short row is cheap. If all rows were padded to the
    same width, a short row would cost as much as the longest row, and the bits of its output would
    depend on the longest row.
    """

    def __init__(self, graph: GraphBuilder, *, mask: str, lengths: str, places: str) -> None:
        """Append the nodes that read `mask`, int32 `[batch, sequence]`.

        `lengths` `[batch]` is the number of tokens in each row. `places` `[tokens, 2]` is the row
        and position of each token.
        """
        self._graph = graph
        self._flat = graph.constant("class.flat", np.array([-1], dtype=np.int64))
        self._one = graph.constant("class.one", np.array(1, dtype=np.int32))
        self._zero = graph.constant("class.zero", np.array(0, dtype=np.int32))
        self._first = graph.constant("class.first", np.array(0, dtype=np.int64))
        self._column = graph.constant("class.column", np.array([1], dtype=np.int64))
        self._lengths = lengths
        graph.plain("CumSum", [lengths, self._first], "class.ends")
        graph.plain("Sub", ["class.ends", lengths], "class.starts")
        self._classes = [self._add_class(number, mask) for number in range(len(WIDTHS) + 1)]
        self._places = self._add_places(places)

    def attend(
        self,
        prefix: str,
        inputs: Sequence[str],
        *,
        heads: int,
        mask_value: float,
        attributes: Mapping[str, float] = MappingProxyType({}),
    ) -> str:
        """Append attention on query, key and value `[tokens, hidden]`.

        Return the name of the output, which has the same shape.

        `mask_value` is added to the scores of free places, which repeat a row's last token.
        `attributes` are more attributes of the nodes that compute attention.
        """
        graph, parts = self._graph, []
        sizes = f"{prefix}.sizes"
        graph.plain("Shape", [inputs[0]], f"{prefix}.size", start=1, end=2)
        graph.plain("Concat", [self._flat, f"{prefix}.size"], sizes, axis=0)
        for number, each in enumerate(self._classes):
            rows = [
                graph.plain("Gather", [name, each.filled], f"{name}.{number}") for name in inputs
            ]
            grid = graph.fused(
                "MultiHeadAttention",
                [*rows, "", each.lengths],
                f"{prefix}.{number}.grid",
                num_heads=heads,
                mask_filter_value=mask_value,
                **attributes,
            )
            parts.append(graph.plain("Reshape", [grid, sizes], f"{prefix}.{number}"))
        graph.plain("Concat", parts, f"{prefix}.classes", axis=0)
        return graph.plain("Gather", [f"{prefix}.classes", self._places], prefix)

    def _add_class(self, number: int, mask: str) -> _LengthGrid:
        graph, prefix = self._graph, f"class.{number}"
        rows = graph.plain("Reshape", [self._find(number), self._flat], f"{prefix}.rows")
        lengths = graph.plain("Gather", [self._lengths, rows], f"{prefix}.lengths")
        graph.plain("Gather", ["class.starts", rows], f"{prefix}.starts")
        width = self._width(number, mask)
        graph.plain("Range", [self._zero, width, self._one], f"{prefix}.line")
        graph.plain("Sub", [lengths, self._one], f"{prefix}.highest")
        # An empty row gets the index of the token before it, which is -1 for the first row.
        graph.plain("Unsqueeze", [f"{prefix}.highest", self._column], f"{prefix}.last")
        graph.plain("Unsqueeze", [f"{prefix}.starts", self._column], f"{prefix}.start")
        graph.plain("Min", [f"{prefix}.line", f"{prefix}.last"], f"{prefix}.offset")
        graph.plain("Add", [f"{prefix}.start", f"{prefix}.offset"], f"{prefix}.place")
        filled = graph.plain("Max", [f"{prefix}.place", self._zero], f"{prefix}.filled")
        graph.plain("Mul", [lengths, self._zero], f"{prefix}.zeros")
        widths = graph.plain("Add", [f"{prefix}.zeros", width], f"{prefix}.widths")
        return _LengthGrid(rows=rows, lengths=lengths, widths=widths, filled=filled)

    def _find(self, number: int) -> str:
        """Append nodes that find the indices of a class's rows: `[1, rows of the class]`."""
        graph, prefix = self._graph, f"class.{number}"
        conditions = []
        if number > 0:
            below = f"class.{number - 1}.width"
            conditions.append(graph.plain("Greater", [self._lengths, below], f"{prefix}.over"))
        if number < len(WIDTHS):
            width = graph.constant(f"{prefix}.width", np.array(WIDTHS[number], dtype=np.int32))
            conditions.append(
                graph.plain("LessOrEqual", [self._lengths, width], f"{prefix}.within")
            )
        belongs = conditions[0]
        if len(conditions) > 1:
            belongs = graph.plain("And", conditions, f"{prefix}.belongs")
        return graph.plain("NonZero", [belongs], f"{prefix}.found")

    def _width(self, number: int, mask: str) -> str:
        """Append the width of a class; the last class is as wide as the sequence."""
        graph, prefix = self._graph, f"class.{number}"
        if number < len(WIDTHS):
            return f"{prefix}.width"
        graph.plain("Shape", [mask], f"{prefix}.shape", start=1, end=2)
        graph.plain("Squeeze", [f"{prefix}.shape"], f"{prefix}.sequence")
        return graph.plain("Cast", [f"{prefix}.sequence"], f"{prefix}.width", to=TensorProto.INT32)

    def _add_places(self, places: str) -> str:
        """Append each token's index in the concatenated grids of all classes: `[tokens]`."""
        graph = self._graph
        order = graph.plain("Concat", [each.rows for each in self._classes], "class.order", axis=0)
        widths = [each.widths for each in self._classes]
        graph.plain("Concat", widths, "class.widths", axis=0)
        graph.plain("CumSum", ["class.widths", self._first], "class.above", exclusive=1)
        graph.plain("ScatterElements", [self._lengths, order, "class.above"], "class.tops", axis=0)
        second = graph.constant("class.second", np.array(1, dtype=np.int64))
        graph.plain("Gather", [places, self._first], "class.token.row", axis=1)
        graph.plain("Gather", [places, second], "class.token.position", axis=1)
        graph.plain("Cast", ["class.token.position"], "class.token.offset", to=TensorProto.INT32)
        graph.plain("Gather", ["class.tops", "class.token.row"], "class.token.top")
        return graph.plain("Add", ["class.token.top", "class.token.offset"], "class.token.place")


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

    def __init__(self, graph: GraphBuilder, mask: str, *, width: int, causal: bool = False) -> None:
        """Append the nodes that read `mask`, int32 `[batch, sequence]`.

        `width` is a head's width. For `causal`, see `open_grid`.
        """
        self._graph = graph
        self._scale = graph.constant(
            "padded.scale", np.array(1 / math.sqrt(width), dtype=np.float32)
        )
        self._joined = graph.constant("padded.joined", np.array([0, 0, -1], dtype=np.int64))
        self._first = graph.constant("padded.first", np.array(0, dtype=np.int64))
        self._positions = ""
        self._hidden = self._future() if causal else add_padding_scores(graph, mask)

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
        if self._positions:
            return self._positions
        zero = graph.constant("padded.zero", np.array(0, dtype=np.int64))
        step = graph.constant("padded.step", np.array(1, dtype=np.int64))
        graph.plain("Shape", ["input_ids"], "padded.shape", start=1, end=2)
        graph.plain("Squeeze", ["padded.shape"], "padded.length")
        self._positions = graph.plain("Range", [zero, "padded.length", step], "padded.positions")
        return self._positions

    def _future(self) -> str:
        """Append a tensor that hides later tokens from earlier ones: `[1, 1, sequence, sequence]`.

        It also hides padding from real tokens, because padding is at the end.
        """
        graph, positions = self._graph, self.positions()
        axes = [graph.constant(f"future.{at}", np.array([at], dtype=np.int64)) for at in (0, 1)]
        least = graph.constant("future.least", np.array(_UNSEEN, dtype=np.float32))
        none = graph.constant("future.none", np.array(0, dtype=np.float32))
        keys, queries = (graph.plain("Unsqueeze", [positions, at], f"{at}.places") for at in axes)
        graph.plain("Greater", [keys, queries], "future.later")
        graph.plain("Where", ["future.later", least, none], "future.scores")
        both = graph.constant("future.axes", np.array([0, 1], dtype=np.int64))
        return graph.plain("Unsqueeze", ["future.scores", both], "future")

    def attend(
        self,
        prefix: str,
        inputs: Sequence[str],
        *,
        heads: int,
        bias: str,
        scale: float | None = None,
    ) -> str:
        """Append nodes that compute attention on rows of query, key and value."""
        graph, by = self._graph, self._scale
        if scale is not None:
            by = graph.constant(f"{prefix}.scale", np.array(scale, dtype=np.float32))
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
        scores = graph.plain("Mul", [f"{prefix}.products", by], f"{prefix}.scaled")
        if bias:
            scores = graph.plain("Add", [scores, bias], f"{prefix}.placed")
        graph.plain("Add", [scores, self._hidden], f"{prefix}.scores")
        graph.plain("Softmax", [f"{prefix}.scores"], f"{prefix}.shares", axis=-1)
        graph.plain("MatMul", [f"{prefix}.shares", f"{prefix}.value.turned"], f"{prefix}.context")
        graph.plain("Transpose", [f"{prefix}.context"], f"{prefix}.rows", perm=[0, 2, 1, 3])
        return graph.plain("Reshape", [f"{prefix}.rows", self._joined], f"{prefix}.joined")


def pad_for_sum(graph: GraphBuilder, values: str, output: str, *, rank: int = 2) -> str:
    """Append nodes that give each row of `values` `[batch, sequence, ...]` three more places.

    The caller sums over the places. The matrix kernel sums four products at a time, but sums the
    last one to three products in another order. With three more places, the bits of a sum do not
    depend on the width of the batch.
    """
    sizes = np.zeros(2 * rank, dtype=np.int64)
    sizes[rank + 1] = 3
    pads = graph.constant(f"{output}.pads", sizes)
    # The mode is the default. Written out, it keeps the revision of earlier imports.
    return graph.plain("Pad", [values, pads], output, mode="constant")


def attention_attributes(*, scale: float | None, causal: bool) -> dict[str, float]:
    """Return the attributes of `MultiHeadAttention` for a scale and for causal attention."""
    scaled = {} if scale is None else {"scale": scale}
    return scaled | ({"unidirectional": 1} if causal else {})


def open_grid(graph: GraphBuilder, *, width: int, causal: bool = False) -> Grid | PaddedGrid:
    """Append the nodes of a grid and return it; `width` is the width of an attention head.

    With `causal` attention, a token sees only itself and the tokens before it.
    """
    if graph.is_plain:
        return PaddedGrid(graph, "attention_mask", width=width, causal=causal)
    return Grid(graph, "attention_mask", causal=causal)


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
        return _embed_apart(graph, "input_ids", positions, "token_type_ids", epsilon=epsilon)
    prefix = "embeddings"
    if graph.has_adapters:
        ids, kinds = (grid.take(name, f"{name}.real") for name in ("input_ids", "token_type_ids"))
        return _embed_apart(graph, ids, positions, kinds, epsilon=epsilon)
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


def _embed_apart(
    graph: GraphBuilder, ids: str, positions: str, kinds: str, *, epsilon: float
) -> str:
    """Append nodes that embed the tokens as BERT does, with an operator for each step."""
    prefix = "embeddings"
    kinds = graph.read_adapters(kinds)
    words, places, types = (
        graph.embed(f"{prefix}.{table}_embeddings", each, f"{prefix}.{table}")
        for table, each in (("word", ids), ("position", positions), ("token_type", kinds))
    )
    # The fused operator adds the embeddings in this order, too.
    graph.plain("Add", [words, types], f"{prefix}.typed")
    graph.plain("Add", [f"{prefix}.typed", places], f"{prefix}.summed")
    return graph.layer_norm(f"{prefix}.LayerNorm", f"{prefix}.summed", prefix, epsilon=epsilon)


def attend_gathered(
    grid: Grid | PaddedGrid,
    prefix: str,
    inputs: Sequence[str],
    *,
    heads: int,
    bias: str,
    scale: float | None = None,
) -> str:
    """Append attention on query, key and value `[tokens, hidden]`.

    Return the name of the output, which has the same shape.

    `bias` names the tensor `[1, heads, sequence, sequence]` that is added to the scores; it is
    empty if nothing is added. Before that, scores are multiplied by `scale`, or else divided by
    the square root of a head's width.
    """
    if isinstance(grid, Grid) and not bias:
        return grid.attend_by_length(prefix, inputs, heads=heads, scale=scale)
    rows = [grid.fill(name, f"{name}.grid") for name in inputs]
    return grid.take(grid.attend(prefix, rows, heads=heads, bias=bias, scale=scale), prefix)


def attend_first(
    graph: GraphBuilder,
    grid: Grid | PaddedGrid,
    prefix: str,
    inputs: Sequence[str],
    *,
    heads: int,
    bias: str,
    scale: float | None = None,
) -> str:
    """Append attention for the first token of every row; the output is `[batch, hidden]`.

    The query is `[batch, hidden]`. Key, value, `bias` and `scale` are as in `attend_gathered`.
    """
    query, *others = inputs
    axis = graph.constant("first.axis", np.array([1], dtype=np.int64))
    rows = [graph.plain("Unsqueeze", [query, axis], f"{query}.grid")]
    rows += [grid.fill(name, f"{name}.grid") for name in others]
    if bias:
        place = graph.constant("first.place", np.array([0], dtype=np.int64))
        bias = graph.plain("Gather", [bias, place], "first.bias", axis=2)
    context = grid.attend(prefix, rows, heads=heads, bias=bias, scale=scale)
    return graph.plain("Squeeze", [context, axis], prefix)
