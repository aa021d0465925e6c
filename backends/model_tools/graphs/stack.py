"""Builds the graph of a transformer from a description of its layers, without torch.

A family describes its layers by a `StackShape`, and renames its weights as below. One writer then
makes the graphs of all kinds of attention (see `GraphOptions`), except `fused`.

Names of weights, where `N` is the number of a layer:

- `embeddings.words`, `embeddings.positions`, `embeddings.types` and `embeddings.norm`
- `layers.N.attention.query`, `.key`, `.value` and `.output`, with a bias or without, and
  `.query_norm` and `.key_norm`
- `layers.0.attention.relative`, the bias of each bucket and head in all layers
- `layers.N.mlp.up` and `layers.N.mlp.down`, and `layers.N.mlp.gate` if the unit is gated
- `layers.N.attention.norm` and `layers.N.mlp.norm`, and if `norms` is `around`, also
  `layers.N.attention.branch_norm` and `layers.N.mlp.branch_norm`
- `norm`, the normalization after the last layer
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from sluicegate.backends.model_tools.graphs.adapters import DOWN
from sluicegate.backends.model_tools.graphs.attention import FusedRows
from sluicegate.backends.model_tools.graphs.bert import FIRST, TOKENS
from sluicegate.backends.model_tools.graphs.graph_builder import Activation, GraphBuilder
from sluicegate.backends.model_tools.graphs.grids import attend_first, attend_gathered, open_grid
from sluicegate.backends.model_tools.graphs.options import GraphOptions, Output
from sluicegate.backends.model_tools.graphs.relative import (
    add_distances,
    bucket_distances,
    count_places,
    subtract_places,
)
from sluicegate.backends.model_tools.graphs.rotary import Rotary
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

# This is added to the scores of tokens that are too far away. Rounding then removes their weight,
# unless the score of such a token is 57 or more above those of all near tokens. The weight is not a
# denormal number, which would be slow on a CPU.
_FAR = -80.0
# The scores of decoders can be far apart, so their summand must be exact.
_UNSEEN = -10000.0
_TYPES = "token_type_ids"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


# The activations here, by their names in `config.json`.
_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_fast": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "quick_gelu": "quick_gelu",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    }
)


def find_activation(name: str) -> Activation:
    """Return the activation that `config.json` names.

    Raises:
        WeightsError: the activation is not supported.
    """
    if name not in _ACTIVATIONS:
        known = ", ".join(f"`{each}`" for each in _ACTIVATIONS)
        raise WeightsError(f"the activation is `{name}`; supported are {known}")
    return _ACTIVATIONS[name]


class AttentionKind(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the attention of some layers.

    A token sees the tokens up to `reach` places away, or all tokens.
    """

    rotary: Rotary | None = None
    reach: int | None = None


class RelativeBias(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the bias for relative positions of T5: see `bucket_distances`."""

    buckets: int
    farthest: int


class StackShape(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the layers of a transformer.

    `attention` names the kind of each layer, of those in `kinds`. Groups of `heads` share one of
    `key_value_heads`. Scores are multiplied by `scale`, or else divided by the square root of
    `head_width`. Then all layers add the `relative` bias, if there is one. With `causal` attention,
    a token sees only itself and the tokens before it. With `adapters`, token types name the
    adapter of each token.

    `norms` says what is normalized: the input of attention and of the feed-forward unit
    (`before`), their output, too (`around`), or the sum of both (`after`). With `skips_first_norm`,
    the first layer does not normalize the input of attention. `norm` is the kind of all
    normalizations except those of single heads, which are always `rms` (`head_norms`).
    """

    hidden: int
    heads: int
    head_width: int
    positions: int
    attention: Sequence[str]
    kinds: Mapping[str, AttentionKind]
    epsilon: float
    activation: Activation
    key_value_heads: int | None = None
    scale: float | None = None
    relative: RelativeBias | None = None
    causal: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norms: Literal["before", "after", "around"] = "before"
    skips_first_norm: bool = False
    head_norms: bool = False
    gated: bool = True
    embedding_scale: float | None = None
    learned_positions: bool = False
    token_types: bool = False
    adapters: bool = False
    embedding_norm: bool = False
    final_norm: bool = True

    @property
    def inputs(self) -> list[str]:
        """The inputs of the graph."""
        return ["input_ids", "attention_mask", *([_TYPES] * (self.token_types or self.adapters))]


# The names of weights here, by the family's names, both without `.weight` and `.bias`. `*` stands
# for the number of a layer. A weight with several names has as many equal parts.
Names = Mapping[str, str | tuple[str, ...]]


def rename_weights(weights: Weights, names: Names) -> Weights:
    """Return the weights that `names` lists, with their names here.

    The error for a missing weight has the family's name.
    """
    found = _Renamed(names)
    for name, tensor in weights.items():
        module, _, part = name.rpartition(".")
        number = _NUMBER.search(module)
        targets = names.get(_NUMBER.sub("*", module, count=1), ())
        if isinstance(targets, str):
            targets = (targets,)
        # Several parts of a weight read the same columns of its adapters.
        is_split = len(targets) > 1 and part != DOWN
        pieces = np.split(tensor, len(targets)) if is_split else [tensor] * len(targets)
        for target, piece in zip(targets, pieces, strict=False):
            found[f"{target.replace('*', number[0] if number else '')}.{part}"] = piece
    return found


class _Renamed(dict[str, NDArray[np.float32]]):
    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, name: str) -> NDArray[np.float32]:
        module, _, part = name.rpartition(".")
        number = _NUMBER.search(module)
        ours = _NUMBER.sub("*", module, count=1)
        theirs = next(
            (n for n, o in self._names.items() if ours in ((o,) if isinstance(o, str) else o)), ours
        )
        raise KeyError(f"{theirs.replace('*', number[0] if number else '')}.{part}")


def write_stack(graph: GraphBuilder, shape: StackShape, options: GraphOptions) -> None:
    """Append the layers of `shape`, and the output.

    Raises:
        WeightsError: no kernel computes the attention in a graph with these options.
        KeyError: a weight is missing.
    """
    if shape.causal and options.packed:
        raise WeightsError("no kernel computes causal attention in a `packed` graph")
    is_fused = options.attention not in {"gathered", "plain"}
    layout: _Layout = _RowsLayout(graph, shape, options) if is_fused else _GridLayout(graph, shape)
    _StackWriter(graph, shape, layout).write(options.output)


class _Layout(Protocol):
    """Says where tokens lie. In the layers, the tensor of all states has `rank` dimensions."""

    rank: int
    # Whether the last layer can compute the first token of each row only.
    takes_first: bool
    # The type of `distances`.
    integers: type[np.int32 | np.int64]

    def real(self, name: str) -> str:
        """Append a node that takes the embedded places of an input."""

    def places(self) -> str:
        """Append nodes that compute the position of each embedded place."""

    def distances(self) -> str:
        """Append nodes that compute distances: see `add_distances`."""

    def enter(self, state: str) -> str:
        """Append nodes that bring the embedded places into the layout of the layers."""

    def first(self, state: str, output: str) -> str:
        """Append a node that takes the first token of each row: `[batch, hidden]`."""

    def rotate(self, state: str, tables: Sequence[str], heads: int) -> str:
        """Append nodes that turn the heads of each token; `tables` names cosines and sines."""

    def attend(
        self,
        prefix: str,
        inputs: Sequence[str],
        *,
        bias: str,
        scale: float | None,
        only_first: bool,
    ) -> str:
        """Append attention; with `only_first`, the query is what `first` returned."""

    def leave(self, state: str, output: Output) -> None:
        """Append the output; with `takes_first`, `state` has only first tokens if so asked."""


class _StackWriter:
    def __init__(self, graph: GraphBuilder, shape: StackShape, layout: _Layout) -> None:
        self._graph = graph
        self._shape = shape
        self._layout = layout
        self._biases: dict[str, str] = {}
        self._constants: set[str] = set()

    def write(self, output: Output) -> None:
        shape, layout = self._shape, self._layout
        self._write_kinds()
        state = layout.enter(self._embed())
        for layer, kind in enumerate(shape.attention):
            is_last = layer == len(shape.attention) - 1
            only_first = is_last and output == FIRST and layout.takes_first
            state = self._write_layer(layer, kind, state, only_first=only_first)
        if shape.final_norm:
            state = self._norm("norm", state)
        layout.leave(state, output)

    def _write_kinds(self) -> None:
        """Append the cosines and sines of each kind, and the summand of its scores."""
        graph, shape = self._graph, self._shape
        used = {name: shape.kinds[name] for name in sorted({*shape.attention})}
        for name, kind in used.items():
            if kind.rotary is not None:
                cosines, sines = kind.rotary.tables()
                graph.floats(f"{name}.cos", cosines)
                graph.floats(f"{name}.sin", sines)
        if shape.relative is not None:
            self._biases = dict.fromkeys(used, self._write_relative(shape.relative))
        if not any(kind.reach is not None for kind in used.values()):
            return
        pairs = self._layout.distances()
        axes = graph.constant("near.axes", np.array([0, 1], dtype=np.int64))
        away = np.abs(np.arange(1 - shape.positions, shape.positions))
        for name, kind in used.items():
            if kind.reach is not None:
                least = _UNSEEN if shape.norm == "rms" else _FAR
                far = np.where(away > kind.reach, least, 0.0).astype(np.float32)
                table = graph.floats(f"{name}.near.table", far)
                graph.plain("Gather", [table, pairs], f"{name}.near.all")
                self._biases[name] = graph.plain(
                    "Unsqueeze", [f"{name}.near.all", axes], f"{name}.near"
                )

    def _write_relative(self, relative: RelativeBias) -> str:
        """Append the bias for relative positions: `[1, heads, sequence, sequence]`."""
        graph, farthest = self._graph, relative.farthest
        away = np.arange(-farthest, farthest + 1)
        buckets = bucket_distances(away, buckets=relative.buckets, farthest=farthest)
        weight = graph.weights["layers.0.attention.relative.weight"]
        table = graph.floats("relative.table", weight[buckets].T)
        # All longer distances have the bucket of the farthest.
        pairs, kind = self._layout.distances(), self._layout.integers
        least = graph.constant("relative.least", np.array(0, dtype=kind))
        most = graph.constant("relative.most", np.array(2 * farthest, dtype=kind))
        graph.plain("Max", [pairs, least], "relative.above")
        graph.plain("Min", ["relative.above", most], "relative.pairs")
        row = graph.constant("relative.row", np.array([0], dtype=np.int64))
        graph.plain("Gather", [table, "relative.pairs"], "relative.heads", axis=1)
        return graph.plain("Unsqueeze", ["relative.heads", row], "relative")

    def _embed(self) -> str:
        graph, shape, layout = self._graph, self._shape, self._layout
        ids = layout.real("input_ids")
        types = graph.read_adapters(layout.real(_TYPES)) if graph.has_adapters else ""
        state = graph.embed("embeddings.words", ids, "embedded.words")
        if shape.embedding_scale is not None:
            factor = np.array(shape.embedding_scale, dtype=np.float32)
            graph.floats("embedded.factor", factor)
            state = graph.plain("Mul", [state, "embedded.factor"], "embedded.scaled")
        if shape.token_types:
            types = types or layout.real(_TYPES)
            of_types = graph.embed("embeddings.types", types, "embedded.types")
            state = graph.plain("Add", [state, of_types], "embedded.typed")
        if shape.learned_positions:
            of_places = graph.embed("embeddings.positions", layout.places(), "embedded.places")
            state = graph.plain("Add", [state, of_places], "embedded.placed")
        return self._norm("embeddings.norm", state) if shape.embedding_norm else state

    def _write_layer(self, layer: int, kind: str, state: str, *, only_first: bool) -> str:
        shape, prefix = self._shape, f"layers.{layer}"
        normed = state
        if shape.norms != "after" and not (shape.skips_first_norm and layer == 0):
            normed = self._norm(f"{prefix}.attention.norm", state)
        context = self._attend(f"{prefix}.attention", kind, normed, only_first=only_first)
        if only_first:
            state = self._layout.first(state, f"{prefix}.first")
        state = self._join(
            f"{prefix}.attention", self._linear(f"{prefix}.attention.output", context), state
        )
        normed = state
        if shape.norms != "after":
            normed = self._norm(f"{prefix}.mlp.norm", state)
        return self._join(f"{prefix}.mlp", self._feed_forward(f"{prefix}.mlp", normed), state)

    def _join(self, prefix: str, branch: str, state: str) -> str:
        """Append the sum of a branch and of the state at its beginning."""
        norms = self._shape.norms
        if norms == "around":
            branch = self._norm(f"{prefix}.branch_norm", branch)
        joined = self._graph.plain("Add", [branch, state], f"{prefix}.sum")
        return self._norm(f"{prefix}.norm", joined) if norms == "after" else joined

    def _attend(self, prefix: str, name: str, state: str, *, only_first: bool) -> str:
        shape, layout, kind = self._shape, self._layout, self._shape.kinds[name]
        read = layout.first(state, f"{prefix}.first") if only_first else state
        given = {"query": read, "key": state, "value": state}
        made = {part: self._linear(f"{prefix}.{part}", given[part]) for part in given}
        counts = {"query": shape.heads, "key": self._key_value_heads}
        for part, heads in counts.items():
            is_first = part == "query" and only_first
            if shape.head_norms:
                rank = 2 if is_first else layout.rank
                made[part] = self._norm_heads(f"{prefix}.{part}_norm", made[part], heads, rank)
            # The query of the first position is not turned, because its angle is zero.
            if kind.rotary is not None and not is_first:
                made[part] = layout.rotate(made[part], [f"{name}.cos", f"{name}.sin"], heads)
        for part in ("key", "value"):
            made[part] = self._repeat_heads(made[part])
        scale = shape.scale
        if kind.rotary is not None and kind.rotary.factor != 1:
            scale = kind.rotary.factor**2 * (scale or shape.head_width**-0.5)
        return layout.attend(
            prefix,
            list(made.values()),
            bias=self._biases.get(name, ""),
            scale=scale,
            only_first=only_first,
        )

    @property
    def _key_value_heads(self) -> int:
        return self._shape.key_value_heads or self._shape.heads

    def _norm_heads(self, prefix: str, state: str, heads: int, rank: int) -> str:
        graph, shape = self._graph, self._shape
        split = self._split(state, heads, rank)
        normed = graph.rms_norm(prefix, split, f"{state}.heads.normed", epsilon=shape.epsilon)
        return self._joined(normed, heads, rank, f"{state}.normed")

    def _repeat_heads(self, state: str) -> str:
        """Append nodes that repeat each head for every query that shares it."""
        shape, rank, heads = self._shape, self._layout.rank, self._key_value_heads
        if heads == shape.heads:
            return state
        split = self._split(state, heads, rank)
        shared = np.repeat(np.arange(heads, dtype=np.int64), shape.heads // heads)
        places = self._constant("heads.shared", shared)
        repeated = self._graph.plain("Gather", [split, places], f"{state}.all", axis=rank - 1)
        return self._joined(repeated, shape.heads, rank, f"{state}.repeated")

    def _split(self, state: str, heads: int, rank: int) -> str:
        sizes = [*[0] * (rank - 1), heads, self._shape.head_width]
        name = self._constant(f"heads.{rank}.{heads}", np.array(sizes, dtype=np.int64))
        return self._graph.plain("Reshape", [state, name], f"{state}.heads")

    def _joined(self, split: str, heads: int, rank: int, output: str) -> str:
        sizes = [*[0] * (rank - 1), heads * self._shape.head_width]
        name = self._constant(f"heads.{rank}.{heads}.joined", np.array(sizes, dtype=np.int64))
        return self._graph.plain("Reshape", [split, name], output)

    def _constant(
        self, name: str, tensor: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
    ) -> str:
        if name not in self._constants:
            self._constants.add(self._graph.constant(name, tensor))
        return name

    def _feed_forward(self, prefix: str, state: str) -> str:
        graph, shape = self._graph, self._shape
        source = self._linear(f"{prefix}.{'gate' if shape.gated else 'up'}", state)
        inner = graph.activate(shape.activation, source, f"{prefix}.active")
        if shape.gated:
            up = self._linear(f"{prefix}.up", state)
            inner = graph.plain("Mul", [inner, up], f"{prefix}.gated")
        return self._linear(f"{prefix}.down", inner)

    def _linear(self, prefix: str, state: str) -> str:
        return self._graph.linear(prefix, state, biased=f"{prefix}.bias" in self._graph.weights)

    def _norm(self, prefix: str, state: str) -> str:
        graph, epsilon, output = self._graph, self._shape.epsilon, f"{prefix}.normed"
        if self._shape.norm == "rms":
            return graph.rms_norm(prefix, state, output, epsilon=epsilon)
        inputs = [state, graph.weight(f"{prefix}.weight")]
        if f"{prefix}.bias" in graph.weights:
            inputs.append(graph.weight(f"{prefix}.bias"))
        return graph.plain("LayerNormalization", inputs, output, epsilon=epsilon)


class _GridLayout:
    """Lays out the tokens of graphs for CPUs and compilers."""

    integers: type[np.int32 | np.int64] = np.int64

    def __init__(self, graph: GraphBuilder, shape: StackShape) -> None:
        self._graph = graph
        self._shape = shape
        self._grid = open_grid(graph, width=shape.head_width, causal=shape.causal)
        self.rank = 3 if graph.is_plain else 2
        self.takes_first = not shape.causal
        self._positions = ""
        self._turning = ""

    def real(self, name: str) -> str:
        return self._grid.take(name, f"{name}.real")

    def places(self) -> str:
        self._positions = self._positions or self._grid.positions()
        return self._positions

    def distances(self) -> str:
        return add_distances(self._graph, positions=self._shape.positions)

    def enter(self, state: str) -> str:
        return state

    def first(self, state: str, output: str) -> str:
        return self._grid.first(state, output)

    def rotate(self, state: str, tables: Sequence[str], heads: int) -> str:
        """Append the rotation; the kernel treats each token as a row."""
        graph = self._graph
        if not self._turning:
            row = graph.constant("rotation.row", np.array([1], dtype=np.int64))
            graph.plain("Cast", [self.places()], "rotation.flat", to=TensorProto.INT64)
            self._turning = graph.plain("Unsqueeze", ["rotation.flat", row], "rotation.positions")
        if graph.is_plain:
            return self._rotate_plain(state, tables, heads)
        rows = graph.plain("Unsqueeze", [state, "rotation.row"], f"{state}.row")
        inputs = [rows, self._turning, *tables]
        # `interleaved=0` is the default, but some runtimes need it to be set.
        rotated = graph.fused("RotaryEmbedding", inputs, f"{state}.rotated.row", interleaved=0)
        return graph.plain("Squeeze", [rotated, "rotation.row"], f"{state}.rotated")

    def _rotate_plain(self, state: str, tables: Sequence[str], heads: int) -> str:
        """Append the rotation with ONNX's standard operators, for the rows of a padded grid."""
        graph = self._graph
        sizes = [0, 0, heads, self._shape.head_width]
        split = graph.constant(f"{state}.split", np.array(sizes, dtype=np.int64))
        joined = graph.constant(f"{state}.joined", np.array([0, 0, -1], dtype=np.int64))
        graph.plain("Reshape", [state, split], f"{state}.turning")
        low, high = f"{state}.low", f"{state}.high"
        graph.plain("Split", [f"{state}.turning"], low, high, axis=-1, num_outputs=2)
        cosine, sine = (
            # Cosines and sines are the same for all rows and heads: `[sequence, 1, width / 2]`.
            graph.plain("Gather", [table, self._turning], f"{state}.{part}")
            for part, table in zip(("cos", "sin"), tables, strict=True)
        )
        for kept, moved, operator in ((low, high, "Sub"), (high, low, "Add")):
            graph.plain("Mul", [kept, cosine], f"{kept}.kept")
            graph.plain("Mul", [moved, sine], f"{moved}.moved")
            graph.plain(operator, [f"{kept}.kept", f"{moved}.moved"], f"{kept}.turned")
        halves = [f"{low}.turned", f"{high}.turned"]
        graph.plain("Concat", halves, f"{state}.whole", axis=-1)
        return graph.plain("Reshape", [f"{state}.whole", joined], f"{state}.rotated")

    def attend(
        self,
        prefix: str,
        inputs: Sequence[str],
        *,
        bias: str,
        scale: float | None,
        only_first: bool,
    ) -> str:
        grid, heads = self._grid, self._shape.heads
        if only_first:
            return attend_first(
                self._graph, grid, prefix, inputs, heads=heads, bias=bias, scale=scale
            )
        return attend_gathered(grid, prefix, inputs, heads=heads, bias=bias, scale=scale)

    def leave(self, state: str, output: Output) -> None:
        graph = self._graph
        if output == TOKENS:
            self._grid.fill(state, TOKENS)
        elif self.takes_first:
            graph.plain("Identity", [state], FIRST)
        else:
            self._grid.first(state, FIRST)


class _RowsLayout:
    """Lays out the tokens of graphs for GPUs, with one node for attention."""

    takes_first = False
    integers: type[np.int32 | np.int64] = np.int32

    def __init__(self, graph: GraphBuilder, shape: StackShape, options: GraphOptions) -> None:
        self._graph = graph
        self._shape = shape
        self._rows = FusedRows(graph, options)
        self.rank = 2 if options.packed else 3
        self._columns = ""
        self._turning = ""

    def real(self, name: str) -> str:
        return name

    def places(self) -> str:
        self._columns = self._columns or count_places(self._graph)
        return self._columns

    def distances(self) -> str:
        return subtract_places(self._graph, self.places(), positions=self._shape.positions)

    def enter(self, state: str) -> str:
        return self._rows.enter(state)

    def first(self, state: str, output: str) -> str:
        raise NotImplementedError

    def rotate(self, state: str, tables: Sequence[str], heads: int) -> str:
        self._turning = self._turning or self._rows.rotations(self.places())
        return self._rows.rotate(state, [self._turning, *tables])

    def attend(
        self,
        prefix: str,
        inputs: Sequence[str],
        *,
        bias: str,
        scale: float | None,
        only_first: bool,
    ) -> str:
        heads, causal = self._shape.heads, self._shape.causal
        return self._rows.attend(prefix, inputs, heads=heads, bias=bias, scale=scale, causal=causal)

    def leave(self, state: str, output: Output) -> None:
        self._rows.leave(state, output)
