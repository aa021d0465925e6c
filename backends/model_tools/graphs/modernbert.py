"""Builds a ModernBERT encoder as an ONNX graph, without torch.

ModernBERT (Warner et al. 2024, arXiv:2412.13663) rotates queries and keys instead of adding
position embeddings. It normalizes before each step and has gated feed-forward layers. In most
layers, a token attends only to near tokens.

Inputs and outputs are described in `backends.model_tools.graphs.bert`, but there is no input
`token_type_ids`. The supported kinds of attention (see `GraphOptions`) are `gathered` and `plain`.
For GPUs, the kinds `heads`, `ranges` and `packed` are also supported, in fp32 or fp16.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from onnx import TensorProto

from sluicegate.backends.model_tools.graphs.attention import FusedRows
from sluicegate.backends.model_tools.graphs.bert import FIRST, TOKENS
from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.grids import attend_first, attend_gathered, open_grid
from sluicegate.backends.model_tools.graphs.options import GraphOptions, Output
from sluicegate.backends.model_tools.graphs.relative import (
    add_distances,
    count_places,
    subtract_places,
)
from sluicegate.backends.model_tools.graphs.weights import WeightsError

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_THETAS = {_GLOBAL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}
# This is added to the scores of tokens that are too far away. Rounding then removes their weight.
# The weight is not a denormal number, which would be slow on a CPU.
_FAR = -80.0


class ModernBertShape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of a ModernBERT encoder, with the field names of `config.json`."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    hidden_activation: Literal["gelu"] = "gelu"
    local_attention: int = 128
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    global_attn_every_n_layers: int = 3
    rope_parameters: dict[str, dict[str, Any] | None] | None = None
    rope_scaling: None = None
    global_rope_theta: float | None = None
    local_rope_theta: float | None = None

    def attention(self, layer: int) -> str:
        """Return the kind of attention of a layer: global or local."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return _LOCAL if layer % self.global_attn_every_n_layers else _GLOBAL

    def theta(self, attention: str) -> float:
        """Return the base from which the frequencies of the rotations are computed."""
        found = (self.rope_parameters or {}).get(attention) or {}
        field, default = _THETAS[attention]
        return float(found.get("rope_theta", getattr(self, field) or default))


def write_modernbert(
    graph: GraphBuilder, config: Mapping[str, Any], options: GraphOptions
) -> tuple[list[str], int]:
    """Append the encoder of a ModernBERT checkpoint; return its inputs, and the output's width.

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type.
        KeyError: a weight is missing.
    """
    shape = msgspec.convert(config, ModernBertShape)
    for found in (shape.rope_parameters or {}).values():
        if found and found.get("rope_type", "default") != "default":
            raise WeightsError(f"`rope_type` must be `default`, not `{found['rope_type']}`")
    if options.attention in {"gathered", "plain"}:
        _GridWriter(shape, graph).write(options.output)
    else:
        _FusedWriter(shape, graph, options).write(options.output)
    return ["input_ids", "attention_mask"], shape.hidden_size


class _ModernBertWriter:
    """Writes the nodes that all kinds of attention share."""

    def __init__(self, shape: ModernBertShape, graph: GraphBuilder) -> None:
        self._shape = shape
        self._graph = graph
        self._width = shape.hidden_size // shape.num_attention_heads
        self._kinds = {shape.attention(layer) for layer in range(shape.num_hidden_layers)}

    def _write_rotations(self) -> None:
        """Append the cosines and sines of all positions."""
        graph, shape = self._graph, self._shape
        exponents = np.arange(0, self._width, 2, dtype=np.float32) / np.float32(self._width)
        places = np.arange(shape.max_position_embeddings, dtype=np.float32)
        for kind in sorted(self._kinds):
            frequencies = np.float32(1) / np.float32(shape.theta(kind)) ** exponents
            angles = places[:, None] * frequencies[None, :]
            graph.floats(f"{kind}.cos", np.cos(angles))
            graph.floats(f"{kind}.sin", np.sin(angles))

    def _embed(self, ids: str) -> str:
        graph = self._graph
        table = graph.weight("embeddings.tok_embeddings.weight")
        state = graph.plain("Gather", [table, ids], "embedded.words")
        return self._norm("embeddings.norm", state)

    def _local_table(self) -> str:
        """Append a table with the summand of local attention for each distance of two tokens."""
        positions = self._shape.max_position_embeddings
        distances = np.abs(np.arange(1 - positions, positions))
        far = np.where(distances > self._shape.local_attention // 2, _FAR, 0.0)
        return self._graph.floats("near.table", far.astype(np.float32))

    def _local_bias(self, table: str, pairs: str) -> str:
        """Append the summand of local attention for scores: `[1, 1, sequence, sequence]`."""
        graph = self._graph
        axes = graph.constant("near.axes", np.array([0, 1], dtype=np.int64))
        graph.plain("Gather", [table, pairs], "near.all")
        return graph.plain("Unsqueeze", ["near.all", axes], "near")

    def _normed(self, layer: int, state: str) -> str:
        """Append the normalization before attention.

        The first layer has none, because its input is already normalized.
        """
        return self._norm(f"layers.{layer}.attn_norm", state) if layer else state

    def _projections(self, layer: int, *tokens: str) -> list[str]:
        prefix = f"layers.{layer}.attn.Wqkv"
        return [self._part(prefix, each, part, of=3) for part, each in enumerate(tokens)]

    def _feed_forward(self, layer: int, context: str, state: str) -> str:
        """Append the steps after attention.

        `context` is the output of attention, and `state` the input of attention.
        """
        prefix = f"layers.{layer}"
        state = self._add(f"{prefix}.attn.Wo", context, state)
        inner = self._gated(f"{prefix}.mlp.Wi", self._norm(f"{prefix}.mlp_norm", state))
        return self._add(f"{prefix}.mlp.Wo", inner, state)

    def _gated(self, prefix: str, state: str) -> str:
        graph = self._graph
        inner, gate = (self._part(prefix, state, part, of=2) for part in range(2))
        active = graph.gelu("Gelu", [inner], f"{prefix}.active")
        return graph.plain("Mul", [active, gate], f"{prefix}.gated")

    def _part(self, prefix: str, state: str, part: int, *, of: int) -> str:
        """Append a linear layer with part `part` of a weight that has `of` equal parts."""
        graph, name = self._graph, f"{prefix}.{part}"
        kernel = np.split(graph.weights[f"{prefix}.weight"], of)[part].T
        product = graph.plain("MatMul", [state, graph.floats(f"{name}.weight", kernel)], name)
        bias = graph.weights.get(f"{prefix}.bias")
        if bias is None:
            return product
        added = graph.floats(f"{name}.bias", np.split(bias, of)[part])
        return graph.plain("Add", [product, added], f"{name}.biased")

    def _add(self, prefix: str, inputs: str, residual: str) -> str:
        graph = self._graph
        product = graph.matmul(prefix, inputs)
        if f"{prefix}.bias" in graph.weights:
            bias = graph.weight(f"{prefix}.bias")
            product = graph.plain("Add", [product, bias], f"{prefix}.biased")
        return graph.plain("Add", [product, residual], f"{prefix}.sum")

    def _norm(self, prefix: str, state: str, output: str = "") -> str:
        graph = self._graph
        parts = [f"{prefix}.{part}" for part in ("weight", "bias")]
        # Published models have no biases in this layer.
        inputs = [state, *(graph.weight(name) for name in parts if name in graph.weights)]
        return graph.plain(
            "LayerNormalization", inputs, output or f"{prefix}.normed", epsilon=self._shape.norm_eps
        )


class _GridWriter(_ModernBertWriter):
    """Writes a graph for CPUs and compilers."""

    def __init__(self, shape: ModernBertShape, graph: GraphBuilder) -> None:
        super().__init__(shape, graph)
        self._grid = open_grid(graph, width=self._width)

    def write(self, output: Output) -> None:
        graph, layers = self._graph, range(self._shape.num_hidden_layers)
        self._write_rotations()
        row = graph.constant("rotation.row", np.array([1], dtype=np.int64))
        graph.plain("Cast", [self._grid.positions()], "rotation.flat", to=TensorProto.INT64)
        graph.plain("Unsqueeze", ["rotation.flat", row], "rotation.positions")
        near = ""
        if _LOCAL in self._kinds:
            table, positions = self._local_table(), self._shape.max_position_embeddings
            near = self._local_bias(table, add_distances(graph, positions=positions))
        state = self._embed(self._grid.take("input_ids", "input_ids.real"))
        for layer in layers:
            # With the output `first`, the last layer computes only the first token of each row.
            only_first = layer == layers[-1] and output == FIRST
            bias = near if self._shape.attention(layer) == _LOCAL else ""
            context = self._attend(layer, state, bias, only_first=only_first)
            if only_first:
                state = self._grid.first(state, f"layers.{layer}.first")
            state = self._feed_forward(layer, context, state)
        if output == FIRST:
            self._norm("final_norm", state, FIRST)
        else:
            self._grid.fill(self._norm("final_norm", state), TOKENS)

    def _attend(self, layer: int, state: str, bias: str, *, only_first: bool) -> str:
        graph, prefix, shape = self._graph, f"layers.{layer}.attn", self._shape
        normed = self._normed(layer, state)
        read = self._grid.first(normed, f"{prefix}.first") if only_first else normed
        query, key, value = self._projections(layer, read, normed, normed)
        key = self._rotate(key, shape.attention(layer))
        if only_first:
            # The query of the first position is not rotated, because its angle is zero.
            return attend_first(
                graph,
                self._grid,
                prefix,
                [query, key, value],
                heads=shape.num_attention_heads,
                bias=bias,
            )
        query = self._rotate(query, shape.attention(layer))
        return attend_gathered(
            self._grid, prefix, [query, key, value], heads=shape.num_attention_heads, bias=bias
        )

    def _rotate(self, tokens: str, kind: str) -> str:
        """Append the rotation of each token's heads; the kernel treats each token as a row."""
        graph = self._graph
        if graph.is_plain:
            return self._rotate_plain(tokens, kind)
        rows = graph.plain("Unsqueeze", [tokens, "rotation.row"], f"{tokens}.row")
        inputs = [rows, "rotation.positions", f"{kind}.cos", f"{kind}.sin"]
        # `interleaved=0` is the default, but some runtimes need it to be set.
        rotated = graph.fused("RotaryEmbedding", inputs, f"{tokens}.rotated.row", interleaved=0)
        return graph.plain("Squeeze", [rotated, "rotation.row"], f"{tokens}.rotated")

    def _rotate_plain(self, tokens: str, kind: str) -> str:
        """Append the rotation with ONNX's standard operators, for the rows of a padded grid."""
        graph = self._graph
        heads = [0, 0, self._shape.num_attention_heads, self._width]
        split = graph.constant(f"{tokens}.split", np.array(heads, dtype=np.int64))
        joined = graph.constant(f"{tokens}.joined", np.array([0, 0, -1], dtype=np.int64))
        graph.plain("Reshape", [tokens, split], f"{tokens}.heads")
        low, high = f"{tokens}.low", f"{tokens}.high"
        graph.plain("Split", [f"{tokens}.heads"], low, high, axis=-1, num_outputs=2)
        cosine, sine = (
            # Cosines and sines are the same for all rows and heads: `[sequence, 1, width / 2]`.
            graph.plain("Gather", [f"{kind}.{part}", "rotation.positions"], f"{tokens}.{part}")
            for part in ("cos", "sin")
        )
        for kept, moved, operator in ((low, high, "Sub"), (high, low, "Add")):
            graph.plain("Mul", [kept, cosine], f"{kept}.kept")
            graph.plain("Mul", [moved, sine], f"{moved}.moved")
            graph.plain(operator, [f"{kept}.kept", f"{moved}.moved"], f"{kept}.turned")
        halves = [f"{low}.turned", f"{high}.turned"]
        graph.plain("Concat", halves, f"{tokens}.turned", axis=-1)
        return graph.plain("Reshape", [f"{tokens}.turned", joined], f"{tokens}.rotated")


class _FusedWriter(_ModernBertWriter):
    """Writes a graph for GPUs, with one node for attention."""

    def __init__(self, shape: ModernBertShape, graph: GraphBuilder, options: GraphOptions) -> None:
        super().__init__(shape, graph)
        self._rows = FusedRows(graph, options)

    def write(self, output: Output) -> None:
        graph, shape = self._graph, self._shape
        self._write_rotations()
        places = count_places(graph)
        rotations = self._rows.rotations(places)
        near = ""
        if _LOCAL in self._kinds:
            table, positions = self._local_table(), shape.max_position_embeddings
            near = self._local_bias(table, subtract_places(graph, places, positions=positions))
        state = self._rows.enter(self._embed("input_ids"))
        for layer in range(shape.num_hidden_layers):
            kind = shape.attention(layer)
            normed = self._normed(layer, state)
            query, key, value = self._projections(layer, normed, normed, normed)
            tables = [rotations, f"{kind}.cos", f"{kind}.sin"]
            context = self._rows.attend(
                f"layers.{layer}.attn",
                [*(self._rows.rotate(name, tables) for name in (query, key)), value],
                heads=shape.num_attention_heads,
                bias=near if kind == _LOCAL else "",
            )
            state = self._feed_forward(layer, context, state)
        self._rows.leave(self._norm("final_norm", state), output)
