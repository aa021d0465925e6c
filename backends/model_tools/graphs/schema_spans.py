"""Builds the graph of a GLiNER2 checkpoint: entities, relations, and classes of texts by labels.

The model is the span architecture of Zaratiana et al. 2025 (arXiv:2507.18546). The weights have the
names of the package `gliner2` (Apache-2.0). Spans are scored as in `spans`, with these differences:

- The vector of a label is changed by the steps of a recurrent layer. For entities, only the first
  step matters. Each step finds another relation: the best span for the head, and for the tail.
- A token of type 3 predicts how many answers its labels have. If it predicts none for entities, no
  span is found. A relation has as many steps.

The output `classes` has the score of each label for the whole row, padded to the width of `spans`.
The output `relations` is `[2, steps, relations, 2]` for each row: the scores of the best spans for
heads and tails, and then their places. Span `n` of word `w` has the place `w * max_width + n`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper
from typing_extensions import override

from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.spans import (
    HEAD,
    LABEL,
    PROMPT,
    SPANS,
    TAIL,
    WORD,
    SpanShape,
    SpanWriter,
    extend_encoder,
)
from sluicegate.backends.model_tools.graphs.weights import Weights

CLASSES, RELATIONS = "classes", "relations"
MOST_COUNT, MOST_RELATIONS = 19, 32
"""The most relations of a type that the model predicts, and the most types in a row."""
RELATIONS_WIDTH = 2 * MOST_COUNT * MOST_RELATIONS * 2
COUNTING = ("count_lstm", "count_lstm_v2", "count_lstm_moe")
"""The layers that count."""
ENCODER, SPAN, COUNT = "encoder.", "span_rep.span_rep_layer", "count_embed"
# Sigmoid makes 0 of this score, in half precision, too.
_NOTHING = -1000.0
# PyTorch has the gates of a GRU in the order reset, update, new. ONNX has update first.
_GATES = (1, 0, 2)
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
    for name, width in ((CLASSES, writer.width), (RELATIONS, RELATIONS_WIDTH)):
        size: list[str | int | None] = ["batch", width]
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, size))
    return model


class _SchemaWriter(SpanWriter):
    def __init__(self, graph: GraphBuilder, shape: SpanShape, counting: str) -> None:
        super().__init__(graph, shape)
        self._counting = counting
        self._known: set[str] = set()

    @override
    def write(self) -> None:
        graph = self.graph
        self.begin()
        words = self.select("words", WORD)
        labels = self.select("labels", LABEL)
        self._classify(labels)
        self._count(self.select("prompts", PROMPT))
        steps, pairs = self._pair()
        queries = [self._queries("labels", labels, "spans.one", self._mask()), pairs]
        # One product of both reads the spans once.
        scores = self.score(SPAN, words, graph.plain("Concat", queries, "queries", axis=1))
        self.finish(
            [self._slice(each, "spans.zero", "spans.labels.most") for each in scores], "spans.all"
        )
        self._gate()
        end = self.integers("queries.end", [np.iinfo(np.int64).max])
        self._choose([self._slice(each, "spans.labels.most", end) for each in scores], steps)

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

    def _count(self, prompts: str) -> None:
        """Append how many answers each prompt of a row has: `[batch, prompts]`."""
        counts = self.mlp("count_pred", prompts, 2)
        self.graph.plain("ArgMax", [counts], "count.found", axis=-1, keepdims=0)

    def _gate(self) -> None:
        """Append the output, in which no span of a row with a count of 0 has a score."""
        graph = self.graph
        graph.plain("Gather", ["count.found", "spans.zero"], "count.first", axis=1)
        graph.plain("Equal", ["count.first", "spans.scalar.zero"], "count.none")
        graph.plain("Unsqueeze", ["count.none", "spans.last"], "count.rows")
        nothing = graph.constant("count.nothing", np.array(_NOTHING, dtype=np.float32))
        graph.plain("Where", ["count.rows", nothing, "spans.all"], SPANS)

    def _slice(self, scores: str, first: str, end: str) -> str:
        """Append the scores of some queries."""
        inputs = [scores, first, end, "spans.two"]
        return self.graph.plain("Slice", inputs, f"{scores}.before.{end}")

    def _pair(self) -> tuple[str, str]:
        """Append the number of steps, and the vectors of heads and tails in each of them."""
        graph, hidden = self.graph, self.shape.hidden_size
        ends = [
            graph.plain("Unsqueeze", [self.select(name, kind), "spans.two"], f"{name}.column")
            for name, kind in (("heads", HEAD), ("tails", TAIL))
        ]
        pairs = graph.plain("Concat", ends, "pairs", axis=2)
        graph.plain("Unsqueeze", ["spans.heads.found", "spans.last"], "pairs.found")
        graph.plain("Less", ["spans.heads.slots", "pairs.found"], "pairs.real")
        graph.plain("Where", ["pairs.real", "count.found", "spans.scalar.zero"], "pairs.counts")
        graph.plain("ReduceMax", ["pairs.counts"], "pairs.most", keepdims=0)
        graph.plain("Max", ["pairs.most", "spans.scalar.one"], "pairs.end")
        steps = graph.plain("Unsqueeze", ["pairs.end", "spans.zero"], "pairs.steps")
        size = self.integers("pairs.size", [-1, 2, hidden])
        fields = graph.plain("Reshape", [pairs, size], "pairs.flat")
        found = self._queries("pairs", fields, steps)
        # Now a row has all its pairs of the first step, then those of the second one, and so on.
        graph.plain("Gather", ["spans.size", "spans.zero"], "pairs.batch")
        width = self.integers("pairs.width", [hidden])
        graph.plain("Concat", [steps, "pairs.batch", "spans.last", width], "pairs.apart", axis=0)
        graph.plain("Reshape", [found, "pairs.apart"], "pairs.by_step")
        graph.plain("Transpose", ["pairs.by_step"], "pairs.by_row", perm=[1, 0, 2, 3])
        joined = self.integers("pairs.joined", [0, -1, hidden])
        return steps, graph.plain("Reshape", ["pairs.by_row", joined], "pairs.queries")

    def _choose(self, scores: Sequence[str], steps: str) -> None:
        """Append the output `relations`: the best span for each query, or the first of the best."""
        graph = self.graph
        nothing, one = (
            graph.constant(f"best.{name}", np.array(value, dtype=np.float32))
            for name, value in (("nothing", 0), ("one", 1))
        )
        width = self.integers("best.width", len(scores))
        highest, places = [], []
        for number, each in enumerate(scores):
            own, shift = f"best.{number}", self.integers(f"best.{number}.shift", number)
            graph.plain("Add", ["spans.words.slots", shift], f"{own}.last")
            graph.plain("Less", [f"{own}.last", "spans.words.counts"], f"{own}.inside")
            graph.plain("Unsqueeze", [f"{own}.inside", "spans.last"], f"{own}.column")
            # ONNX Runtime's sigmoid is less exact near 1, where it would choose another span.
            graph.plain("Neg", [each], f"{own}.negative")
            graph.plain("Exp", [f"{own}.negative"], f"{own}.power")
            graph.plain("Add", [f"{own}.power", one], f"{own}.sum")
            graph.plain("Reciprocal", [f"{own}.sum"], f"{own}.scores")
            graph.plain("Where", [f"{own}.column", f"{own}.scores", nothing], f"{own}.real")
            highest.append(
                graph.plain("ReduceMax", [f"{own}.real", "spans.one"], f"{own}.highest", keepdims=1)
            )
            graph.plain("ArgMax", [f"{own}.real"], f"{own}.word", axis=1, keepdims=1)
            graph.plain("Mul", [f"{own}.word", width], f"{own}.before")
            places.append(graph.plain("Add", [f"{own}.before", shift], f"{own}.place"))
        graph.plain("Concat", highest, "best.scores", axis=1)
        graph.plain("Concat", places, "best.places", axis=1)
        top = graph.plain("ReduceMax", ["best.scores", "spans.one"], "best.top", keepdims=1)
        graph.plain("Equal", ["best.scores", top], "best.is_top")
        far = self.integers("best.far", np.iinfo(np.int64).max)
        graph.plain("Where", ["best.is_top", "best.places", far], "best.near")
        graph.plain("ReduceMin", ["best.near", "spans.one"], "best.first", keepdims=1)
        graph.plain("Cast", ["best.first"], "best.place", to=TensorProto.FLOAT)
        self._finish_relations(graph.plain("Concat", [top, "best.place"], "best", axis=1), steps)

    def _finish_relations(self, best: str, steps: str) -> None:
        """Set what is beyond the count of a relation to 0, and pad to the output's size."""
        graph, last = self.graph, self.integers("relations.last", [-1, 2])
        first = self.integers("relations.first", [0, 2])
        graph.plain("Concat", [first, steps, last], "relations.apart", axis=0)
        graph.plain("Reshape", [best, "relations.apart"], "relations.all")
        graph.plain("Range", ["spans.scalar.zero", "pairs.end", "spans.scalar.one"], "pairs.step")
        graph.plain("Unsqueeze", ["pairs.step", "spans.last"], "pairs.step.column")
        graph.plain("Unsqueeze", ["pairs.counts", "spans.one"], "pairs.counts.row")
        graph.plain("Less", ["pairs.step.column", "pairs.counts.row"], "relations.used")
        axes = self.integers("relations.axes", [1, 4])
        graph.plain("Unsqueeze", ["relations.used", axes], "relations.mask")
        graph.plain("Where", ["relations.mask", "relations.all", "best.nothing"], "relations.real")
        most = self.integers("relations.most", [MOST_COUNT, MOST_RELATIONS])
        graph.plain("Concat", [steps, "spans.heads.most"], "relations.given", axis=0)
        graph.plain("Sub", [most, "relations.given"], "relations.missing")
        before = self.integers("relations.before", [0] * 7)
        graph.plain("Concat", [before, "relations.missing", "spans.zero"], "relations.pads", axis=0)
        graph.plain("Pad", ["relations.real", "relations.pads"], "relations.padded")
        size = self.integers("relations.size", [0, RELATIONS_WIDTH])
        graph.plain("Reshape", ["relations.padded", size], RELATIONS)

    def _queries(self, name: str, fields: str, steps: str, mask: str = "") -> str:
        """Append the vectors with which spans are compared: `[steps * groups, fields, hidden]`.

        `fields` are the vectors of labels or roles, `[groups, fields, hidden]`. Those of a group
        read each other, except for places that `mask` makes small.
        """
        graph, own, hidden = self.graph, f"query.{name}", self.shape.hidden_size
        graph.plain("Shape", [fields], f"{own}.size")
        graph.plain("Concat", [steps, f"{own}.size"], f"{own}.stepwise", axis=0)
        graph.plain("Expand", [fields, f"{own}.stepwise"], f"{own}.repeated")
        inner = self.integers(f"{own}.inner", [1, 2])
        graph.plain("Gather", [f"{own}.size", inner], f"{own}.group")
        graph.plain("Concat", ["spans.last", f"{own}.group"], f"{own}.groups", axis=0)
        given = graph.plain("Reshape", [f"{own}.repeated", f"{own}.groups"], f"{own}.given")
        flat = self.integers(f"{own}.flat", [1, -1, hidden])
        first = graph.plain("Reshape", [fields, flat], f"{own}.first")
        state = graph.plain("Reshape", [self._recur(own, first, steps), f"{own}.groups"], own)
        if self._counting == "count_lstm":
            both = graph.plain("Concat", [state, given], f"{own}.both", axis=-1)
            return self.mlp(f"{COUNT}.projector", both, 2, f"{own}.projector")
        if self._counting == "count_lstm_moe":
            return self._mix(own, state)
        return self._transform(own, graph.plain("Add", [state, given], f"{own}.sum"), mask)

    def _recur(self, name: str, first: str, steps: str) -> str:
        """Append a GRU, which reads the vectors of the first places: `[steps, 1, all, hidden]`."""
        graph, own = self.graph, f"{COUNT}.gru"
        places = graph.weight(f"{COUNT}.pos_embedding.weight")
        graph.plain("Slice", [places, "spans.zero", steps, "spans.zero"], f"{name}.places")
        graph.plain("Unsqueeze", [f"{name}.places", "spans.one"], f"{name}.places.column")
        graph.plain("Shape", [first], f"{name}.first.size")
        graph.plain("Expand", [f"{name}.places.column", f"{name}.first.size"], f"{name}.read")
        weights = [
            self._floats(f"{own}.{kind}", self._gates(f"{own}.{kind}")[None])
            for kind in ("weight_ih", "weight_hh")
        ]
        biases = [self._gates(f"{own}.{kind}") for kind in ("bias_ih", "bias_hh")]
        bias = self._floats(f"{own}.bias", np.concatenate(biases)[None])
        return graph.plain(
            "GRU",
            [f"{name}.read", *weights, bias, "", first],
            f"{name}.states",
            hidden_size=self.shape.hidden_size,
            linear_before_reset=1,
        )

    def _gates(self, name: str) -> NDArray[np.float32]:
        """Return a weight of the GRU in ONNX's order."""
        parts = np.split(self.graph.weights[f"{name}_l0"], len(_GATES))
        return np.concatenate([parts[gate] for gate in _GATES])

    def _floats(self, name: str, tensor: NDArray[np.float32]) -> str:
        """Append floats if nobody has appended them yet."""
        if name not in self._known:
            self._known.add(self.graph.floats(name, tensor))
        return name

    def _mix(self, name: str, state: str) -> str:
        """Append a mixture of experts: two layers each, weighted by a router."""
        graph = self.graph
        inner = self.linear(f"{COUNT}.router.0", state, f"{name}.router.inner")
        active = graph.activate("gelu", inner, f"{name}.router.active")
        outer = self.linear(f"{COUNT}.router.2", active, f"{name}.router.outer")
        gates = graph.plain("Softmax", [outer], f"{name}.router.gates", axis=-1)
        first, second = (graph.weights[f"{COUNT}.w{number}"] for number in (1, 2))
        experts, hidden, size = first.shape
        all_first = first.transpose(1, 0, 2).reshape(hidden, experts * size)
        kernel = self._floats("experts.inner", all_first)
        wide = graph.plain("MatMul", [state, kernel], f"{name}.experts.product")
        bias = self._floats("experts.inner.bias", graph.weights[f"{COUNT}.b1"].reshape(-1))
        graph.plain("Add", [wide, bias], f"{name}.experts.sum")
        active = graph.activate("gelu", f"{name}.experts.sum", f"{name}.experts.active")
        spread = np.repeat(np.eye(experts, dtype=np.float32), size, axis=1)
        weights = [gates, self._floats("experts.spread", spread)]
        graph.plain("MatMul", weights, f"{name}.experts.gates")
        graph.plain("Mul", [active, f"{name}.experts.gates"], f"{name}.experts.gated")
        kernel = self._floats("experts.outer", second.reshape(experts * size, hidden))
        graph.plain("MatMul", [f"{name}.experts.gated", kernel], f"{name}.experts.output")
        graph.plain("MatMul", [gates, graph.weight(f"{COUNT}.b2")], f"{name}.experts.offset")
        parts = [f"{name}.experts.output", f"{name}.experts.offset"]
        return graph.plain("Add", parts, f"{name}.mixed")

    def _mask(self) -> str:
        """Append a number for each label of a row, which is small for places without one."""
        graph = self.graph
        far = graph.constant("query.far", np.array(_FAR, dtype=np.float32))
        near = graph.constant("query.near", np.array(0, dtype=np.float32))
        graph.plain("Where", ["spans.labels.used", near, far], "query.used")
        axes = self.integers("query.axes", [1, 2])
        return graph.plain("Unsqueeze", ["query.used", axes], "query.mask")

    def _transform(self, name: str, queries: str, mask: str) -> str:
        """Append a small transformer over the fields of each group."""
        graph, prefix = self.graph, f"{COUNT}.transformer"
        state = self.linear(f"{prefix}.in_projector", queries, f"{name}.small")
        for layer in range(_LAYERS):
            weights = f"{prefix}.transformer.layers.{layer}"
            state = self._layer(weights, f"{name}.{layer}", state, mask)
        state = graph.plain("Concat", [state, queries], f"{name}.both", axis=-1)
        for module in (0, 2):
            own = f"{name}.out.{module}"
            inner = self.linear(f"{prefix}.out_projector.{module}", state, own)
            state = graph.plain("Relu", [inner], f"{own}.active")
        return self.linear(f"{prefix}.out_projector.4", state, f"{name}.out")

    def _layer(self, prefix: str, name: str, state: str, mask: str) -> str:
        """Append a layer of PyTorch's `TransformerEncoder`, which normalizes after each sum."""
        graph = self.graph
        context = self._attend(f"{prefix}.self_attn", name, state, mask)
        attended = graph.plain("Add", [state, context], f"{name}.attended")
        state = graph.layer_norm(f"{prefix}.norm1", attended, f"{name}.middle", epsilon=_EPSILON)
        inner = self.linear(f"{prefix}.linear1", state, f"{name}.inner")
        active = graph.plain("Relu", [inner], f"{name}.active")
        outer = self.linear(f"{prefix}.linear2", active, f"{name}.outer")
        summed = graph.plain("Add", [state, outer], f"{name}.sum")
        return graph.layer_norm(f"{prefix}.norm2", summed, f"{name}.state", epsilon=_EPSILON)

    def _attend(self, prefix: str, name: str, state: str, mask: str) -> str:
        graph = self.graph
        kernel = graph.weight(f"{prefix}.in_proj_weight", transposed=True)
        size = graph.weights[f"{prefix}.in_proj_weight"].shape[1] // _HEADS
        graph.plain("MatMul", [state, kernel], f"{name}.products")
        bias = graph.weight(f"{prefix}.in_proj_bias")
        graph.plain("Add", [f"{name}.products", bias], f"{name}.all")
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        graph.plain("Split", [f"{name}.all"], *parts, axis=-1, num_outputs=3)
        heads = self.integers(f"{name}.heads", [0, 0, _HEADS, size])
        sides = []
        for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
            graph.plain("Reshape", [part, heads], f"{part}.split")
            sides.append(graph.plain("Transpose", [f"{part}.split"], f"{part}.apart", perm=order))
        graph.plain("MatMul", sides[:2], f"{name}.similar")
        scale = graph.constant(f"{name}.scale", np.array(size**-0.5, dtype=np.float32))
        scores = graph.plain("Mul", [f"{name}.similar", scale], f"{name}.scaled")
        if mask:
            scores = graph.plain("Add", [scores, mask], f"{name}.masked")
        graph.plain("Softmax", [scores], f"{name}.weights", axis=-1)
        graph.plain("MatMul", [f"{name}.weights", sides[2]], f"{name}.values")
        graph.plain("Transpose", [f"{name}.values"], f"{name}.turned", perm=[0, 2, 1, 3])
        joined = self.integers(f"{name}.joined", [0, 0, -1])
        graph.plain("Reshape", [f"{name}.turned", joined], f"{name}.flat")
        return self.linear(f"{prefix}.out_proj", f"{name}.flat", f"{name}.context")
