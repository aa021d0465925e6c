"""Builds a BERT encoder as an ONNX graph of ONNX Runtime's fused operators, without torch.

Inputs, int32 `[batch, sequence]`: `input_ids`, `attention_mask`, `token_type_ids`. Rows must be
padded on the right, because attention reads the number of real tokens instead of the mask.

The output, float32, is `tokens` `[batch, sequence, hidden]`, the last hidden state, undefined at
padding; or `first` `[batch, hidden]`, the last hidden state of each row's first token.

The operators were chosen by measurements on a CPU:

- `BiasGelu` costs as much as `Add` and `Gelu` together, and gives the same bits.
- `FastGelu` is 1 % faster, but wrong in the third decimal, so it is not used.
- `SkipLayerNormalization` takes six times as long as `Add` and `LayerNormalization`
  together, so it is not used.

On a GPU, `SkipLayerNormalization` is faster than `Add` and `LayerNormalization`. There, ONNX
Runtime itself puts it in their place, unless the rows of the graph are packed without padding.
"""

import numpy as np
from onnx import ModelProto, TensorProto

from sluicegate.backends.model_tools.graphs.attention import add_ranges, attend_rows
from sluicegate.backends.model_tools.graphs.graph_builder import (
    TYPES,
    GraphBuilder,
    StoredWeights,
    nothing_stored,
)
from sluicegate.backends.model_tools.graphs.grids import (
    attend_first,
    attend_gathered,
    count_positions,
    embed_tokens,
    open_grid,
)
from sluicegate.backends.model_tools.graphs.options import GraphOptions, Precision
from sluicegate.backends.model_tools.graphs.relative import add_relative_bias
from sluicegate.backends.model_tools.graphs.shapes import ACTIVATIONS, PROJECTION, BertShape
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError, check_weights

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOKENS, FIRST = "tokens", "first"


def build_bert(
    shape: BertShape,
    weights: Weights,
    options: GraphOptions | None = None,
    stored: StoredWeights = nothing_stored,
) -> ModelProto:
    """Return the encoder of `shape` with `weights`; equal arguments give equal bytes.

    Raises:
        WeightsError: the weights do not fit the shape, or the options are not valid.
    """
    options = options or GraphOptions()
    check_weights(shape, weights)
    problem = options.problem()
    if problem is not None:
        raise WeightsError(problem)
    is_plain = options.attention == "plain"
    graph = GraphBuilder(weights, options.precision, plain=is_plain, stored=stored)
    _BertWriter(shape, options, graph).write()
    return graph.model("bert", INPUTS, options.output, shape.hidden)


class _BertWriter:
    def __init__(self, shape: BertShape, options: GraphOptions, graph: GraphBuilder) -> None:
        self._shape = shape
        self._options = options
        self._graph = graph

    def write(self) -> None:
        if self._options.attention in {"gathered", "plain"}:
            self._write_gathered()
            return
        self._write_rows()
        if self._options.output == FIRST:
            first = self._graph.constant("first.index", np.array(0, dtype=np.int64))
            self._graph.plain("Gather", [TOKENS, first], FIRST, axis=1)

    def _write_gathered(self) -> None:
        graph, shape = self._graph, self._shape
        grid = open_grid(graph, width=shape.hidden // shape.heads)
        embedded = embed_tokens(
            graph, grid, epsilon=shape.layer_norm_epsilon, padding=shape.padding
        )
        state = self._project(embedded)
        bias = add_relative_bias(graph, shape, from_values=False) if shape.buckets else ""
        for layer in range(shape.layers):
            prefix = f"encoder.layer.{layer}.attention.self"
            # With the output `first`, the last layer computes only the first token of each row.
            only_first = layer == shape.layers - 1 and self._options.output == FIRST
            read = grid.first(state, f"{prefix}.first") if only_first else state
            inputs = [
                graph.linear(f"{prefix}.query", read),
                graph.linear(f"{prefix}.key", state),
                graph.linear(f"{prefix}.value", state),
            ]
            if only_first:
                context = attend_first(graph, grid, prefix, inputs, heads=shape.heads, bias=bias)
            else:
                context = attend_gathered(grid, prefix, inputs, heads=shape.heads, bias=bias)
            state = self._feed_forward(
                layer, context, read, FIRST if only_first else f"state.{layer}"
            )
        if self._options.output == TOKENS:
            grid.fill(state, TOKENS)

    def _write_rows(self) -> None:
        state = self._project(self._embed())
        masking = ["lengths"]
        if self._options.attention == "ranges":
            masking = [add_ranges(self._graph, mask="attention_mask", lengths="lengths")]
        if self._options.packed:
            # From here on, states have no padding: `[real tokens, hidden]`.
            masking = ["places", "ends"]
            outputs = ("packed", *masking, "longest")
            state = self._graph.fused("RemovePadding", [state, "lengths"], *outputs)
        if self._shape.buckets:
            # Between mask and bias, `Attention` has an input for a decoder's past state. An encoder
            # leaves this input empty.
            masking += [""] * (self._options.attention == "fused")
            masking += [add_relative_bias(self._graph, self._shape, from_values=True)]
        exact = self._options.precision == "fp32" and not self._options.packed
        for layer in range(self._shape.layers):
            last = layer == self._shape.layers - 1
            output = TOKENS if last and exact else f"state.{layer}"
            state = self._encode(layer, state, masking, output=output)
        if not exact:
            self._finish(state)

    def _embed(self) -> str:
        """Append nodes that look up the tokens' embeddings and compute `lengths`.

        `lengths` holds the number of real tokens in each row.
        """
        prefix, graph = "embeddings", self._graph
        # No kernel computes embeddings in bf16.
        wanted = self._options.precision
        precision: Precision = "fp32" if wanted == "bf16" else wanted
        tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        inputs = [
            "input_ids",
            "token_type_ids",
            *(graph.weight(f"{prefix}.{table}.weight", precision) for table in tables),
            *graph.norm(f"{prefix}.LayerNorm", precision),
            "attention_mask",
        ]
        if self._shape.padding is not None:
            inputs.append(count_positions(graph, self._shape.padding))
        state = graph.fused(
            "EmbedLayerNormalization",
            inputs,
            prefix,
            "lengths",
            epsilon=self._shape.layer_norm_epsilon,
        )
        if precision == wanted:
            return state
        return graph.plain("Cast", [state], f"{prefix}.cast", to=TYPES[wanted])

    def _encode(self, layer: int, state: str, masking: list[str], *, output: str) -> str:
        """Append one layer: attention, then feed-forward, each with residual and normalization."""
        graph, prefix = self._graph, f"encoder.layer.{layer}"
        context = attend_rows(
            graph,
            self._options.attention,
            f"{prefix}.attention.self",
            state,
            heads=self._shape.heads,
            masking=masking,
        )
        return self._feed_forward(layer, context, state, output)

    def _project(self, state: str) -> str:
        """Append a projection of the embeddings if they are narrower than the layers."""
        return state if self._shape.embedding is None else self._graph.linear(PROJECTION, state)

    def _feed_forward(self, layer: int, context: str, state: str, output: str) -> str:
        return self._graph.feed_forward(
            f"encoder.layer.{layer}",
            context,
            state,
            output,
            epsilon=self._shape.layer_norm_epsilon,
            activation=ACTIVATIONS[self._shape.activation],
        )

    def _finish(self, state: str) -> None:
        """Append the output `tokens`: the last layer's state in float32, with padding restored."""
        graph = self._graph
        exact = self._options.precision == "fp32"
        if self._options.packed:
            restored = TOKENS if exact else "restored"
            state = graph.fused("RestorePadding", [state, "places"], restored)
        if not exact:
            graph.plain("Cast", [state], TOKENS, to=TensorProto.FLOAT)
