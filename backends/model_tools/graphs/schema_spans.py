"""Builds the graph of a GLiNER2 checkpoint, which finds entities and classifies by labels.

The model is the span architecture of Zaratiana et al. 2025 (arXiv:2507.18546). The weights have the
names of the package `gliner2` (Apache-2.0). Spans are scored as in `spans`, with these differences:

- The vector of a label is changed by a step of a recurrent layer, which knows how many entities the
  other layers ask for. For entities, only the first step matters.
- The token of type 3 predicts how many answers a row has. If it predicts none, no span is found.

The output `classes` has the score of each label for the whole row, padded to the width of `spans`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from typing_extensions import override

from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.spans import (
    LABEL,
    PROMPT,
    SPANS,
    WORD,
    SpanShape,
    SpanWriter,
    extend_encoder,
)
from sluicegate.backends.model_tools.graphs.weights import Weights

CLASSES = "classes"
COUNTING = ("count_lstm", "count_lstm_v2", "count_lstm_moe")
"""The layers that count."""
ENCODER, SPAN, COUNT = "encoder.", "span_rep.span_rep_layer", "count_embed"
# Sigmoid makes 0 of this score, in half precision, too.
_NOTHING = -1000.0
# The transformer of `count_lstm_v2` has this form in every checkpoint.
_LAYERS, _HEADS, _EPSILON = 2, 4, 1e-5
_FAR = -1e9


def build_schema_spans(
    config: Mapping[str, Any], weights: Weights, shape: SpanShape, counting: str
) -> ModelProto:
    """Return the graph of a checkpoint; `counting` is its layer that counts.

    Raises:
        WeightsError: no graph can be built for the encoder, or a weight is missing.
    """
    writer = _SchemaWriter(GraphBuilder(weights), shape, counting)
    model = extend_encoder(config, weights, ENCODER, writer)
    size: list[str | int | None] = ["batch", writer.width]
    model.graph.output.append(helper.make_tensor_value_info(CLASSES, TensorProto.FLOAT, size))
    return model


class _SchemaWriter(SpanWriter):
    def __init__(self, graph: GraphBuilder, shape: SpanShape, counting: str) -> None:
        super().__init__(graph, shape)
        self._counting = counting

    @override
    def write(self) -> None:
        self.begin()
        words = self.select("words", WORD)
        labels = self.select("labels", LABEL)
        self._classify(labels)
        self.score(SPAN, words, self._query(labels), "spans.all")
        self._gate(self.select("prompts", PROMPT))

    def _classify(self, labels: str) -> None:
        graph = self.graph
        scores = self.mlp("classifier", labels, 2)
        graph.plain("Squeeze", [scores, "spans.last"], "classes.scores")
        graph.plain("Mul", ["classes.scores", "spans.labels.mask"], "classes.real")
        width = self.integers("classes.width", [self.width])
        graph.plain("Sub", [width, "spans.labels.most"], "classes.missing")
        before = self.integers("classes.before", [0, 0, 0])
        graph.plain("Concat", [before, "classes.missing"], "classes.pads", axis=0)
        graph.plain("Pad", ["classes.real", "classes.pads"], CLASSES)

    def _gate(self, prompts: str) -> None:
        """Append the output, in which no span of a row with a count of 0 has a score."""
        graph = self.graph
        first = graph.plain("Gather", [prompts, "spans.scalar.zero"], "count.prompt", axis=1)
        counts = self.mlp("count_pred", first, 2)
        graph.plain("ArgMax", [counts], "count.found", axis=-1, keepdims=1)
        graph.plain("Equal", ["count.found", "spans.scalar.zero"], "count.none")
        graph.plain("Unsqueeze", ["count.none", "spans.last"], "count.rows")
        nothing = graph.constant("count.nothing", np.array(_NOTHING, dtype=np.float32))
        graph.plain("Where", ["count.rows", nothing, "spans.all"], SPANS)

    def _query(self, labels: str) -> str:
        """Append the vectors of labels that spans are compared with."""
        graph = self.graph
        state = self._step(labels)
        if self._counting == "count_lstm":
            both = graph.plain("Concat", [state, labels], "query.both", axis=-1)
            return self.mlp(f"{COUNT}.projector", both, 2)
        if self._counting == "count_lstm_moe":
            return self._mix(state)
        return self._transform(graph.plain("Add", [state, labels], "query.sum"))

    def _step(self, labels: str) -> str:
        """Append a step of the GRU: it reads the vector of the first place after the labels."""
        graph = self.graph
        weights = {
            name: graph.weights[f"{COUNT}.gru.{name}_l0"]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        place = graph.weights[f"{COUNT}.pos_embedding.weight"][0]
        read = np.split(weights["weight_ih"] @ place + weights["bias_ih"], 3)
        kernels, biases = np.split(weights["weight_hh"], 3), np.split(weights["bias_hh"], 3)
        reset, update = (
            graph.plain("Sigmoid", [self._dense(name, labels, kernel, bias)], f"{name}.gate")
            for name, kernel, bias in (
                ("gru.reset", kernels[0], biases[0] + read[0]),
                ("gru.update", kernels[1], biases[1] + read[1]),
            )
        )
        hidden = self._dense("gru.new", labels, kernels[2], biases[2])
        graph.plain("Mul", [reset, hidden], "gru.new.reset")
        graph.plain(
            "Add", ["gru.new.reset", graph.floats("gru.new.read", read[2])], "gru.new.total"
        )
        new = graph.plain("Tanh", ["gru.new.total"], "gru.new.active")
        graph.plain("Sub", [labels, new], "gru.change")
        graph.plain("Mul", [update, "gru.change"], "gru.kept")
        return graph.plain("Add", [new, "gru.kept"], "gru.state")

    def _dense(
        self, name: str, state: str, kernel: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> str:
        graph = self.graph
        product = graph.plain(
            "MatMul", [state, graph.floats(f"{name}.kernel", kernel.T)], f"{name}.product"
        )
        return graph.plain("Add", [product, graph.floats(f"{name}.bias", bias)], f"{name}.sum")

    def _mix(self, state: str) -> str:
        """Append a mixture of experts: two layers each, weighted by a router."""
        graph = self.graph
        inner = self.linear(f"{COUNT}.router.0", state, "router.inner")
        active = graph.activate("gelu", inner, "router.active")
        outer = self.linear(f"{COUNT}.router.2", active, "router.outer")
        gates = graph.plain("Softmax", [outer], "router.gates", axis=-1)
        first, second = (graph.weights[f"{COUNT}.w{number}"] for number in (1, 2))
        experts, hidden, size = first.shape
        wide = self._dense(
            "experts",
            state,
            first.transpose(0, 2, 1).reshape(experts * size, hidden),
            graph.weights[f"{COUNT}.b1"].reshape(-1),
        )
        active = graph.activate("gelu", wide, "experts.active")
        spread = np.repeat(np.eye(experts, dtype=np.float32), size, axis=1)
        graph.plain("MatMul", [gates, graph.floats("experts.spread", spread)], "experts.gates")
        graph.plain("Mul", [active, "experts.gates"], "experts.gated")
        kernel = graph.floats("experts.outer", second.reshape(experts * size, hidden))
        graph.plain("MatMul", ["experts.gated", kernel], "experts.output")
        bias = graph.weight(f"{COUNT}.b2")
        graph.plain("MatMul", [gates, bias], "experts.offset")
        return graph.plain("Add", ["experts.output", "experts.offset"], "query.mixed")

    def _transform(self, queries: str) -> str:
        """Append a small transformer over the labels of each row."""
        graph, prefix = self.graph, f"{COUNT}.transformer"
        far = graph.constant("query.far", np.array(_FAR, dtype=np.float32))
        near = graph.constant("query.near", np.array(0, dtype=np.float32))
        graph.plain("Where", ["spans.labels.used", near, far], "query.labels")
        axes = self.integers("query.axes", [1, 2])
        graph.plain("Unsqueeze", ["query.labels", axes], "query.mask")
        state = self.linear(f"{prefix}.in_projector", queries, "query.small")
        for layer in range(_LAYERS):
            state = self._layer(f"{prefix}.transformer.layers.{layer}", state)
        state = graph.plain("Concat", [state, queries], "query.both", axis=-1)
        for module in (0, 2):
            inner = self.linear(f"{prefix}.out_projector.{module}", state, f"query.out.{module}")
            state = graph.plain("Relu", [inner], f"query.out.{module}.active")
        return self.linear(f"{prefix}.out_projector.4", state, "query.out")

    def _layer(self, prefix: str, state: str) -> str:
        """Append a layer of PyTorch's `TransformerEncoder`, which normalizes after each sum."""
        graph = self.graph
        attended = graph.plain("Add", [state, self._attend(prefix, state)], f"{prefix}.attended")
        state = graph.layer_norm(f"{prefix}.norm1", attended, f"{prefix}.middle", epsilon=_EPSILON)
        inner = self.linear(f"{prefix}.linear1", state, f"{prefix}.inner")
        active = graph.plain("Relu", [inner], f"{prefix}.active")
        outer = self.linear(f"{prefix}.linear2", active, f"{prefix}.outer")
        summed = graph.plain("Add", [state, outer], f"{prefix}.sum")
        return graph.layer_norm(f"{prefix}.norm2", summed, f"{prefix}.state", epsilon=_EPSILON)

    def _attend(self, prefix: str, state: str) -> str:
        graph, own = self.graph, f"{prefix}.self_attn"
        kernels = np.split(graph.weights[f"{own}.in_proj_weight"], 3)
        biases = np.split(graph.weights[f"{own}.in_proj_bias"], 3)
        size = kernels[0].shape[0] // _HEADS
        kernels[0], biases[0] = kernels[0] / np.sqrt(size), biases[0] / np.sqrt(size)
        heads = self.integers(f"{own}.heads", [0, 0, _HEADS, size])
        sides = []
        for name, kernel, bias, order in zip(
            ("query", "key", "value"),
            (kernel.astype(np.float32) for kernel in kernels),
            (bias.astype(np.float32) for bias in biases),
            ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]),
            strict=True,
        ):
            flat = self._dense(f"{own}.{name}", state, kernel, bias)
            graph.plain("Reshape", [flat, heads], f"{own}.{name}.split")
            graph.plain("Transpose", [f"{own}.{name}.split"], f"{own}.{name}.apart", perm=order)
            sides.append(f"{own}.{name}.apart")
        graph.plain("MatMul", sides[:2], f"{own}.products")
        graph.plain("Add", [f"{own}.products", "query.mask"], f"{own}.masked")
        graph.plain("Softmax", [f"{own}.masked"], f"{own}.weights", axis=-1)
        graph.plain("MatMul", [f"{own}.weights", sides[2]], f"{own}.read")
        graph.plain("Transpose", [f"{own}.read"], f"{own}.turned", perm=[0, 2, 1, 3])
        joined = self.integers(f"{own}.joined", [0, 0, -1])
        graph.plain("Reshape", [f"{own}.turned", joined], f"{own}.flat")
        return self.linear(f"{own}.out_proj", f"{own}.flat", f"{own}.output")
