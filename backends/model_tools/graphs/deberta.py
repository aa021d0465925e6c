"""Builds a DeBERTa-v2 (or v3) encoder as an ONNX graph, without torch.

Attention is disentangled (He et al. 2021, arXiv:2006.03654): the score of two tokens is the sum of
three products: content with content, content with relative position, and relative position with
content. The vectors of the relative positions depend only on weights. So each layer's projections
of these vectors are computed while the graph is built, not when it runs.

`GraphOptions.attention` selects how attention is computed:

- With `gathered` and `plain`, several nodes compute attention. With `gathered`, linear
  layers compute real tokens only.
- With `heads`, `ranges` and `packed`, one fused node computes attention. It adds the two
  products with relative positions to the scores. These kinds support fp32 and fp16.

Inputs and outputs are described in `backends.model_tools.graphs.bert`. There is an input
`token_type_ids` only if the model has token types.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.attention import FusedRows
from sluicegate.backends.model_tools.graphs.bert import FIRST, TOKENS
from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.grids import add_padding_scores, open_grid
from sluicegate.backends.model_tools.graphs.options import GraphOptions, Output
from sluicegate.backends.model_tools.graphs.relative import (
    add_distances,
    count_places,
    subtract_places,
)
from sluicegate.backends.model_tools.graphs.weights import WeightsError

_PROJECTIONS = ("query_proj", "key_proj", "value_proj")


class DebertaShape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the size of a DeBERTa-v2 encoder, with the field names of `config.json`."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    max_relative_positions: int = -1
    position_buckets: int = -1
    position_biased_input: bool = True
    pos_att_type: list[str] | str | None = None
    share_att_key: bool = False
    norm_rel_ebd: str = "none"
    hidden_act: str = "gelu"
    conv_kernel_size: int = 0
    embedding_size: int | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """The products of content and position that `pos_att_type` lists, such as `c2p`."""
        named = self.pos_att_type or []
        products = named.split("|") if isinstance(named, str) else named
        return tuple(each.strip().lower() for each in products)

    @property
    def attended(self) -> tuple[str, ...]:
        """The products in `named`, or none if the encoder has no relative attention."""
        return self.named if self.relative_attention else ()

    @property
    def farthest(self) -> int:
        """The largest relative distance; larger distances count as this distance."""
        relative = self.max_relative_positions
        return relative if relative > 0 else self.max_position_embeddings

    @property
    def span(self) -> int:
        """The number of different relative distances in each direction."""
        return self.position_buckets if self.position_buckets > 0 else self.farthest


def write_deberta(
    graph: GraphBuilder, config: Mapping[str, Any], options: GraphOptions
) -> tuple[list[str], int]:
    """Append the encoder of a `DebertaV2` checkpoint; return its inputs, and the output's width.

    Raises:
        WeightsError: the configuration has an option that is not supported.
        msgspec.ValidationError: the configuration has a wrong type.
        KeyError: a weight is missing.
    """
    shape = msgspec.convert(config, DebertaShape)
    if shape.hidden_act != "gelu" or shape.conv_kernel_size > 0:
        raise WeightsError("`hidden_act` must be `gelu` and there must be no convolution")
    if shape.embedding_size not in (None, shape.hidden_size):
        raise WeightsError("`embedding_size` must be `hidden_size`")
    if options.attention in {"gathered", "plain"}:
        _GridWriter(shape, graph).write(options.output)
    else:
        _FusedWriter(shape, graph, options).write(options.output)
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (shape.type_vocab_size > 0)
    return names, shape.hidden_size


def bucket_distances(distances: NDArray[np.int64], *, buckets: int, farthest: int) -> Any:
    """Return the bucket of each distance.

    Short distances have buckets of their own. The buckets of longer distances grow logarithmically.
    """
    middle = buckets // 2
    size = np.where(np.abs(distances) < middle, middle - 1, np.abs(distances)).astype(np.float32)
    scale = np.log(np.float32((farthest - 1) / middle))
    steps = np.ceil(np.log(size / np.float32(middle)) / scale * np.float32(middle - 1)) + middle
    return np.where(size <= middle, distances, steps * np.sign(distances)).astype(np.int64)


class _DebertaWriter:
    """Writes the nodes that all kinds of attention share."""

    def __init__(self, shape: DebertaShape, graph: GraphBuilder) -> None:
        self._shape = shape
        self._graph = graph
        self._width = shape.hidden_size // shape.num_attention_heads
        # The scale depends on all products that the configuration names, even on products that
        # attention does not add.
        ways = sum(way in shape.named for way in ("c2p", "p2c"))
        self._scale = math.sqrt(self._width * (1 + ways))

    def _position_tables(self) -> dict[str, NDArray[np.int64]]:
        """Return tables from distances to rows of the embeddings of relative positions.

        The tables are for the products `c2p` and `p2c`.
        """
        shape = self._shape
        reach = shape.max_position_embeddings - 1
        distances = np.arange(-reach, reach + 1, dtype=np.int64)
        buckets = distances
        if shape.position_buckets > 0:
            buckets = bucket_distances(
                distances, buckets=shape.position_buckets, farthest=shape.farthest
            )
        # The sign is the opposite of Hugging Face's, because distances here are measured in the
        # opposite direction. The extra element aligns the weights that follow the table in the
        # file.
        return {
            name: np.append(np.clip(sign * buckets + shape.span, 0, 2 * shape.span - 1), 0)
            for name, sign in (("c2p", -1), ("p2c", 1))
        }

    def _embed_tokens(self, ids: str, places: str, kinds: str) -> str:
        graph, shape, prefix = self._graph, self._shape, "embeddings"
        table = graph.weight(f"{prefix}.word_embeddings.weight")
        state = graph.plain("Gather", [table, ids], "embedded.words")
        if places:
            table = graph.weight(f"{prefix}.position_embeddings.weight")
            graph.plain("Gather", [table, places], "embedded.places")
            state = graph.plain("Add", [state, "embedded.places"], "embedded.placed")
        if kinds:
            table = graph.weight(f"{prefix}.token_type_embeddings.weight")
            graph.plain("Gather", [table, kinds], "embedded.types")
            state = graph.plain("Add", [state, "embedded.types"], "embedded.typed")
        epsilon = shape.layer_norm_eps
        return graph.layer_norm(f"{prefix}.LayerNorm", state, "embedded", epsilon=epsilon)

    def _positions(self) -> NDArray[np.float32] | None:
        """Return the vectors of the relative positions: `[2 * span, hidden]`."""
        if not self._shape.attended:
            return None
        weights = self._graph.weights
        table = weights["encoder.rel_embeddings.weight"][: 2 * self._shape.span]
        if "layer_norm" in self._shape.norm_rel_ebd.lower():
            exact = table.astype(np.float64)
            centred = exact - exact.mean(axis=1, keepdims=True)
            variance = (centred**2).mean(axis=1, keepdims=True)
            exact = centred / np.sqrt(variance + self._shape.layer_norm_eps)
            exact = exact * weights["encoder.LayerNorm.weight"] + weights["encoder.LayerNorm.bias"]
            table = exact.astype(np.float32)
        return table

    def _split(self, prefix: str, rows: str) -> str:
        """Append nodes that split `rows` into heads: `[batch, heads, sequence, width]`."""
        graph = self._graph
        split = graph.plain("Reshape", [rows, "heads"], f"{prefix}.split")
        return graph.plain("Transpose", [split], f"{prefix}.heads", perm=[0, 2, 1, 3])

    def _position_products(
        self, prefix: str, query: str, key: str, positions: NDArray[np.float32] | None
    ) -> Iterator[tuple[str, str]]:
        """Append the products of contents with positions; yield each product's kind and name."""
        if positions is not None and "c2p" in self._shape.attended:
            yield "c2p", self._position_product(prefix, "c2p", query, positions)
        if positions is not None and "p2c" in self._shape.attended:
            near = self._position_product(prefix, "p2c", key, positions)
            turned = self._graph.plain("Transpose", [near], f"{prefix}.p2c", perm=[0, 1, 3, 2])
            yield "p2c", turned

    def _position_product(
        self, prefix: str, way: str, state: str, positions: NDArray[np.float32]
    ) -> str:
        """Append the products of `state` with the relative positions of all other tokens."""
        graph, shape = self._graph, self._shape
        own = {"c2p": "pos_key_proj", "p2c": "pos_query_proj"}[way]
        shared = {"c2p": "key_proj", "p2c": "query_proj"}[way]
        name = f"{prefix}.{shared if shape.share_att_key else own}"
        seen = positions @ graph.weights[f"{name}.weight"].T + graph.weights[f"{name}.bias"]
        seen = seen.reshape(-1, shape.num_attention_heads, self._width).transpose(1, 2, 0)
        scaled = (seen / np.float32(self._scale)).astype(np.float32)
        table = graph.floats(f"{prefix}.{way}.positions", scaled)
        graph.plain("MatMul", [state, table], f"{prefix}.{way}.all")
        return graph.plain(
            "GatherElements", [f"{prefix}.{way}.all", f"near.{way}"], f"{prefix}.{way}.near", axis=3
        )


class _GridWriter(_DebertaWriter):
    """Writes a graph for CPUs and compilers, in which several nodes compute attention."""

    def __init__(self, shape: DebertaShape, graph: GraphBuilder) -> None:
        super().__init__(shape, graph)
        self._grid = open_grid(graph, width=self._width)

    def write(self, output: Output) -> None:
        self._write_masks()
        state = self._embed()
        positions = self._positions()
        for layer in range(self._shape.num_hidden_layers):
            last = layer == self._shape.num_hidden_layers - 1
            state = self._encode(layer, state, positions, FIRST if last and output == FIRST else "")
        if output == TOKENS:
            self._grid.fill(state, TOKENS)

    def _write_masks(self) -> None:
        """Append `padding` (a summand for the scores of keys) and constants for reshaping."""
        graph, shape = self._graph, self._shape
        if not graph.is_plain:  # the grid of a plain graph has already added `padding`
            add_padding_scores(graph, "attention_mask")
        heads = [0, 0, shape.num_attention_heads, self._width]
        graph.constant("heads", np.array(heads, dtype=np.int64))
        graph.constant("joined", np.array([0, 0, shape.hidden_size], dtype=np.int64))
        if shape.attended:
            self._write_distances()

    def _write_distances(self) -> None:
        """Append `near.c2p` and `near.p2c`, which have an index for each pair of tokens."""
        graph, shape = self._graph, self._shape
        pairs = add_distances(graph, positions=shape.max_position_embeddings)
        rows = graph.plain("Shape", ["input_ids"], "distance.batch", start=0, end=1)
        heads = graph.constant("distance.heads", np.array([shape.num_attention_heads]))
        size = [rows, heads, "distance.length", "distance.length"]
        graph.plain("Concat", size, "distance.size", axis=0)
        for name, table in self._position_tables().items():
            graph.constant(f"near.{name}.table", table)
            graph.plain("Gather", [f"near.{name}.table", pairs], f"near.{name}.square")
            graph.plain("Expand", [f"near.{name}.square", "distance.size"], f"near.{name}")

    def _embed(self) -> str:
        grid, shape = self._grid, self._shape
        ids = grid.take("input_ids", "input_ids.real")
        places = grid.positions() if shape.position_biased_input else ""
        kinds = ""
        if shape.type_vocab_size > 0:
            kinds = grid.take("token_type_ids", "token_type_ids.real")
        return self._embed_tokens(ids, places, kinds)

    def _encode(
        self, layer: int, state: str, positions: NDArray[np.float32] | None, first: str
    ) -> str:
        """Append one layer: attention, then feed-forward, each with residual and normalization.

        If `first` names an output, only the first token of each row is computed.
        """
        graph, prefix = self._graph, f"encoder.layer.{layer}"
        context = self._attend(f"{prefix}.attention.self", state, positions)
        if first:
            place = graph.constant("first.place", np.array(0, dtype=np.int64))
            context = graph.plain("Gather", [context, place], f"{prefix}.first", axis=1)
            state = self._grid.first(state, f"{prefix}.state")
        else:
            context = self._grid.take(context, f"{prefix}.attended")
        output, epsilon = first or f"state.{layer}", self._shape.layer_norm_eps
        return graph.feed_forward(prefix, context, state, output, epsilon=epsilon)

    def _attend(self, prefix: str, state: str, positions: NDArray[np.float32] | None) -> str:
        graph = self._graph
        query, key, value = (self._project(f"{prefix}.{name}", state) for name in _PROJECTIONS)
        turned = graph.plain("Transpose", [key], f"{prefix}.turned", perm=[0, 1, 3, 2])
        scale = graph.constant(f"{prefix}.scale", np.array(1 / self._scale, dtype=np.float32))
        graph.plain("MatMul", [query, turned], f"{prefix}.products")
        scores = graph.plain("Mul", [f"{prefix}.products", scale], f"{prefix}.contents")
        for way, near in self._position_products(prefix, query, key, positions):
            scores = graph.plain("Add", [scores, near], f"{prefix}.with_{way}")
        graph.plain("Add", [scores, "padding"], f"{prefix}.scores")
        graph.plain("Softmax", [f"{prefix}.scores"], f"{prefix}.shares", axis=-1)
        graph.plain("MatMul", [f"{prefix}.shares", value], f"{prefix}.heads")
        graph.plain("Transpose", [f"{prefix}.heads"], f"{prefix}.rows", perm=[0, 2, 1, 3])
        return graph.plain("Reshape", [f"{prefix}.rows", "joined"], f"{prefix}.context")

    def _project(self, prefix: str, state: str) -> str:
        """Append a linear layer, split into heads: `[batch, heads, sequence, width]`."""
        rows = self._grid.fill(self._graph.linear(prefix, state), f"{prefix}.grid")
        return self._split(prefix, rows)


class _FusedWriter(_DebertaWriter):
    """Writes a graph for GPUs, with one node for attention."""

    def __init__(self, shape: DebertaShape, graph: GraphBuilder, options: GraphOptions) -> None:
        super().__init__(shape, graph)
        self._rows = FusedRows(graph, options)

    def write(self, output: Output) -> None:
        graph, shape = self._graph, self._shape
        places = ""
        if shape.attended or shape.position_biased_input:
            places = count_places(graph)
        if shape.attended:
            self._write_distances(places)
        state = self._embed_tokens(
            "input_ids",
            places if shape.position_biased_input else "",
            "token_type_ids" if shape.type_vocab_size > 0 else "",
        )
        state = self._rows.enter(state)
        positions = self._positions()
        for layer in range(shape.num_hidden_layers):
            prefix, epsilon = f"encoder.layer.{layer}", shape.layer_norm_eps
            context = self._attend(f"{prefix}.attention.self", state, positions)
            output_name = f"state.{layer}"
            state = graph.feed_forward(prefix, context, state, output_name, epsilon=epsilon)
        self._rows.leave(state, output)

    def _write_distances(self, places: str) -> None:
        """Append `near.c2p` and `near.p2c`, which have an index for each pair of tokens."""
        graph, shape = self._graph, self._shape
        heads = [0, 0, shape.num_attention_heads, self._width]
        graph.constant("heads", np.array(heads, dtype=np.int64))
        pairs = subtract_places(graph, places, positions=shape.max_position_embeddings)
        each = np.zeros((1, shape.num_attention_heads, 1, 1), dtype=np.int32)
        axes = graph.constant("distance.axes", np.array([1, 3], dtype=np.int64))
        rows = graph.plain("Unsqueeze", ["columns.zeros", axes], "distance.zeros.rows")
        zeros = graph.constant("distance.zeros.heads", each)
        zeros = graph.plain("Add", [rows, zeros], "distance.zeros")
        for name, table in self._position_tables().items():
            # int32 is smaller than int64, and every layer reads the tensor.
            graph.constant(f"near.{name}.table", table.astype(np.int32))
            square = graph.plain("Gather", [f"near.{name}.table", pairs], f"near.{name}.square")
            graph.plain("Add", [zeros, square], f"near.{name}")

    def _attend(self, prefix: str, state: str, positions: NDArray[np.float32] | None) -> str:
        graph, heads = self._graph, self._shape.num_attention_heads
        inputs = [graph.linear(f"{prefix}.{name}", state) for name in _PROJECTIONS]
        bias = ""
        if positions is not None:
            # Products with positions need whole rows, with their padding.
            query, key = (
                self._split(name, self._rows.pad(name, f"{name}.padded")) for name in inputs[:2]
            )
            for way, near in self._position_products(prefix, query, key, positions):
                bias = graph.plain("Add", [bias, near], f"{prefix}.with_{way}") if bias else near
        return self._rows.attend(prefix, inputs, heads=heads, bias=bias, scale=1 / self._scale)
