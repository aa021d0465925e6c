"""Builds the graph of a GLiNER checkpoint, which scores spans of words for labels of the caller.

The model is that of Zaratiana et al. 2023 (arXiv:2311.08526): an encoder reads the labels and the
words of a text in one row, an LSTM reads the words, and the score of a span for a label is the
product of their vectors. The weights have the names of the package `gliner` (Apache-2.0).

The input `token_type_ids` says what each token is: 0 for the token that stands for a word, 2 for
the token that stands for a label, 3 for the token that stands for all labels or for a relation, 4
and 5 for those that stand for the head and the tail of a relation, and 1 for all others.
The output `spans` has one line for each token, but line `i` belongs to the `i`-th word. It has the
scores of the spans that begin with that word: for each length from 1 to `max_width`, the scores of
`max_labels` labels.

The vector of a span is a linear layer over a hidden layer, which reads the vectors of the first and
the last word. So the parts of the hidden layer are computed once for each word instead of once for
each span, and the last layer is applied to the labels instead of the spans.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from onnx import ModelProto, TensorProto, helper
from typing_extensions import override

from sluicegate.backends.model_tools.graphs.bert import TOKENS
from sluicegate.backends.model_tools.graphs.checkpoint import build_encoder
from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.heads import extend_model
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

SPANS = "spans"
WORD, OTHER, LABEL, PROMPT, HEAD, TAIL = range(6)
_KINDS = "token_type_ids"
_ENCODER = "token_rep_layer.bert_layer.model."
_SPAN = "span_rep_layer.span_rep_layer"
# PyTorch has the gates of an LSTM in the order input, forget, cell, output. ONNX has the order
# input, output, forget, cell.
_GATES = (0, 3, 1, 2)


class SpanShape(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the sizes of the layers after the encoder."""

    hidden_size: int
    max_width: int
    max_labels: int
    num_rnn_layers: int = 0


def build_spans(config: Mapping[str, Any], weights: Weights, shape: SpanShape) -> ModelProto:
    """Return the graph of a checkpoint; `config` is the configuration of its encoder.

    Raises:
        WeightsError: no graph can be built for the encoder, or a weight is missing.
    """
    return extend_encoder(config, weights, _ENCODER, _GlinerWriter(GraphBuilder(weights), shape))


def extend_encoder(
    config: Mapping[str, Any], weights: Weights, prefix: str, writer: "SpanWriter"
) -> ModelProto:
    """Return the graph of an encoder and what `writer` adds; its weights begin with `prefix`.

    Raises:
        WeightsError: no graph can be built for the encoder, or a weight is missing.
    """
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }
    encoder = build_encoder(config, own)
    if any(value.name == _KINDS for value in encoder.graph.input):
        raise WeightsError("its encoder has token types, which is not supported")
    try:
        writer.write()
    except KeyError as error:
        raise WeightsError(f"the weight {error} is missing") from None
    model = extend_model(encoder, writer.graph, SPANS, ["batch", "sequence", writer.width])
    rows = ["batch", "sequence"]
    model.graph.input.append(helper.make_tensor_value_info(_KINDS, TensorProto.INT32, rows))
    return model


class SpanWriter(ABC):
    """Writes the layers after an encoder that score spans of words for labels."""

    def __init__(self, graph: GraphBuilder, shape: SpanShape) -> None:
        self.graph = graph
        self.shape = shape

    @property
    def width(self) -> int:
        """The scores of a word."""
        return self.shape.max_width * self.shape.max_labels

    @abstractmethod
    def write(self) -> None:
        """Append all layers, of which the last one has the output `SPANS`."""

    def begin(self) -> None:
        """Append what the other methods need."""
        graph = self.graph
        for name, number in (("zero", 0), ("one", 1), ("two", 2), ("last", -1)):
            self.integers(name, [number])
        self.integers("scalar.zero", 0)
        self.integers("scalar.one", 1)
        self.integers("most", [self.shape.max_labels])
        graph.plain("Cast", ["attention_mask"], "spans.real", to=TensorProto.BOOL)
        graph.plain("Shape", [_KINDS], "spans.size")
        graph.plain("Gather", ["spans.size", "spans.one"], "spans.length")
        graph.plain("Squeeze", ["spans.length"], "spans.scalar.length")
        graph.plain("Neg", ["spans.scalar.one"], "spans.down")
        graph.plain(
            "Range", ["spans.scalar.length", "spans.scalar.zero", "spans.down"], "spans.order"
        )
        graph.plain("Cast", ["spans.order"], "spans.countdown", to=TensorProto.FLOAT)

    def integers(self, name: str, values: list[int] | int) -> str:
        """Append a constant."""
        return self.graph.constant(f"spans.{name}", np.array(values, dtype=np.int64))

    def select(self, name: str, kind: int) -> str:
        """Append the vectors of all tokens of a kind: `[batch, most of a row, hidden]`.

        A row without such a token gets its first token instead, so that the scores of every row
        depend on its tokens. Also append `spans.{name}.count`, the number of vectors in each row,
        `spans.{name}.most`, the largest of these numbers, and `spans.{name}.mask`, which is 0 for
        places after the last vector of a row.
        """
        graph, prefix = self.graph, f"spans.{name}"
        wanted = graph.constant(f"{prefix}.kind", np.array(kind, dtype=np.int32))
        nothing = graph.constant(f"{prefix}.nothing", np.array(0, dtype=np.float32))
        graph.plain("Equal", [_KINDS, wanted], f"{prefix}.of_kind")
        graph.plain("And", [f"{prefix}.of_kind", "spans.real"], f"{prefix}.chosen")
        graph.plain("Cast", [f"{prefix}.chosen"], f"{prefix}.ones", to=TensorProto.INT64)
        graph.plain("ReduceSum", [f"{prefix}.ones", "spans.one"], f"{prefix}.found", keepdims=0)
        graph.plain("Max", [f"{prefix}.found", "spans.one"], f"{prefix}.least")
        limit = "spans.most" if kind == LABEL else "spans.length"
        graph.plain("Min", [f"{prefix}.least", limit], f"{prefix}.count")
        graph.plain("ReduceMax", [f"{prefix}.count", "spans.zero"], f"{prefix}.most", keepdims=1)
        graph.plain("Where", [f"{prefix}.chosen", "spans.countdown", nothing], f"{prefix}.keys")
        graph.plain(
            "TopK", [f"{prefix}.keys", f"{prefix}.most"], f"{prefix}.values", f"{prefix}.places"
        )
        graph.plain("Unsqueeze", [f"{prefix}.places", "spans.last"], f"{prefix}.indices")
        state = graph.plain(
            "GatherND", [TOKENS, f"{prefix}.indices"], f"{prefix}.tokens", batch_dims=1
        )
        graph.plain("Squeeze", [f"{prefix}.most"], f"{prefix}.end")
        graph.plain(
            "Range", ["spans.scalar.zero", f"{prefix}.end", "spans.scalar.one"], f"{prefix}.slots"
        )
        graph.plain("Unsqueeze", [f"{prefix}.count", "spans.last"], f"{prefix}.counts")
        graph.plain("Less", [f"{prefix}.slots", f"{prefix}.counts"], f"{prefix}.used")
        graph.plain("Cast", [f"{prefix}.used"], f"{prefix}.mask", to=TensorProto.FLOAT)
        return state

    def linear(self, name: str, state: str, output: str) -> str:
        """Append a linear layer."""
        graph = self.graph
        kernel = graph.weight(f"{name}.weight", transposed=True)
        product = graph.plain("MatMul", [state, kernel], f"{output}.product")
        return graph.plain("Add", [product, graph.weight(f"{name}.bias")], output)

    def mlp(self, name: str, state: str, outer: int = 3, output: str = "") -> str:
        """Append a linear layer, a ReLU and another linear layer, which is module `outer`."""
        output = output or name
        inner = self.linear(f"{name}.0", state, f"{output}.inner")
        active = self.graph.plain("Relu", [inner], f"{output}.active")
        return self.linear(f"{name}.{outer}", active, f"{output}.outer")

    def _read_spans(self, prefix: str, words: str) -> list[str]:
        """Append the hidden layer of all spans: for each width `[batch, words, inner]`."""
        graph, size = self.graph, self.shape.hidden_size
        name = f"{prefix}.out_project"
        inner = graph.weights[f"{name}.0.weight"]
        sides = {}
        for side, part in (("start", inner[:, :size]), ("end", inner[:, size:])):
            vectors = self.mlp(f"{prefix}.project_{side}", words)
            active = graph.plain("Relu", [vectors], f"spans.{side}.active")
            kernel = graph.floats(f"{name}.{side}", part.T)
            sides[side] = graph.plain("MatMul", [active, kernel], f"spans.{side}")
        graph.plain("Add", [sides["end"], graph.weight(f"{name}.0.bias")], "spans.end.biased")
        # The ends of spans that reach beyond the text are zero, whatever the other rows are.
        graph.plain("Unsqueeze", ["spans.words.mask", "spans.last"], "spans.words.column")
        graph.plain("Mul", ["spans.end.biased", "spans.words.column"], "spans.end.real")
        pads = self.integers("end.pads", [0, 0, 0, 0, self.shape.max_width - 1, 0])
        graph.plain("Pad", ["spans.end.real", pads], "spans.ends")
        return [self._read_width(number) for number in range(self.shape.max_width)]

    def _read_width(self, number: int) -> str:
        """Append the hidden layer of all spans of `number + 1` words."""
        graph, prefix = self.graph, f"spans.{number}"
        start = self.integers(f"{number}.start", [number])
        graph.plain("Add", ["spans.words.most", start], f"{prefix}.stop")
        graph.plain("Slice", ["spans.ends", start, f"{prefix}.stop", "spans.one"], f"{prefix}.ends")
        graph.plain("Add", ["spans.start", f"{prefix}.ends"], f"{prefix}.hidden")
        return graph.plain("Relu", [f"{prefix}.hidden"], f"{prefix}.active")

    def score(self, prefix: str, words: str, queries: str) -> list[str]:
        """Append the scores of all spans: for each width `[batch, words, queries]`.

        `queries` are vectors `[batch, queries, hidden]`. The weights begin with `prefix`.
        """
        graph, layer = self.graph, f"{prefix}.out_project.3"
        spans = self._read_spans(prefix, words)
        graph.plain("MatMul", [queries, graph.weight(f"{layer}.weight")], "spans.rows")
        columns = graph.plain("Transpose", ["spans.rows"], "spans.columns", perm=[0, 2, 1])
        bias = graph.floats(f"{layer}.column", graph.weights[f"{layer}.bias"][:, None])
        graph.plain("MatMul", [queries, bias], "spans.bias")
        offset = graph.plain("Transpose", ["spans.bias"], "spans.offset", perm=[0, 2, 1])
        return [
            graph.plain(
                "Add",
                [graph.plain("MatMul", [state, columns], f"spans.{number}.products"), offset],
                f"spans.{number}.scores",
            )
            for number, state in enumerate(spans)
        ]

    def finish(self, scores: Sequence[str], output: str = SPANS) -> None:
        """Set scores of places without a word or a label to 0, and pad to the output's size."""
        graph, shape = self.graph, self.shape
        lines = [graph.plain("Unsqueeze", [each, "spans.two"], f"{each}.line") for each in scores]
        graph.plain("Concat", lines, "spans.scores", axis=2)
        axes = self.integers("mask.axes", [2, 3])
        graph.plain("Unsqueeze", ["spans.words.mask", axes], "spans.mask.words")
        axes = self.integers("mask.label.axes", [1, 2])
        graph.plain("Unsqueeze", ["spans.labels.mask", axes], "spans.mask.labels")
        graph.plain("Mul", ["spans.scores", "spans.mask.words"], "spans.of_words")
        graph.plain("Mul", ["spans.of_words", "spans.mask.labels"], "spans.of_labels")
        graph.plain("Sub", ["spans.length", "spans.words.most"], "spans.missing.words")
        graph.plain("Sub", ["spans.most", "spans.labels.most"], "spans.missing.labels")
        before = self.integers("pads.before", [0] * 5)
        pads = [before, "spans.missing.words", "spans.zero", "spans.missing.labels"]
        graph.plain("Concat", pads, "spans.pads", axis=0)
        graph.plain("Pad", ["spans.of_labels", "spans.pads"], "spans.padded")
        size = self.integers("shape", [0, 0, shape.max_width * shape.max_labels])
        graph.plain("Reshape", ["spans.padded", size], output)


class _GlinerWriter(SpanWriter):
    @override
    def write(self) -> None:
        self.begin()
        words = self._read(self._projected("words", WORD))
        labels = self._projected("labels", LABEL)
        queries = self.mlp("prompt_rep_layer", labels)
        self.finish(self.score(_SPAN, words, queries))

    def _projected(self, name: str, kind: int) -> str:
        state = self.select(name, kind)
        if "token_rep_layer.projection.weight" not in self.graph.weights:
            return state
        return self.linear("token_rep_layer.projection", state, f"spans.{name}.projected")

    def _read(self, words: str) -> str:
        """Append the bidirectional LSTM over the words of each row."""
        graph, layers = self.graph, self.shape.num_rnn_layers
        if not layers:
            return words
        graph.plain("Cast", ["spans.words.count"], "rnn.lengths", to=TensorProto.INT32)
        self.integers("joined", [0, 0, -1])
        state = graph.plain("Transpose", [words], "rnn.input", perm=[1, 0, 2])
        for layer in range(layers):
            sides = [f"l{layer}", f"l{layer}_reverse"]
            inputs = [
                graph.floats(f"rnn.{kind}.{layer}", np.stack([self._gates(kind, s) for s in sides]))
                for kind in ("weight_ih", "weight_hh")
            ]
            bias = np.stack(
                [
                    np.concatenate([self._gates(kind, side) for kind in ("bias_ih", "bias_hh")])
                    for side in sides
                ]
            )
            inputs.append(graph.floats(f"rnn.bias.{layer}", bias))
            hidden = self.shape.hidden_size // 2
            graph.plain(
                "LSTM",
                [state, *inputs, "rnn.lengths"],
                f"rnn.sides.{layer}",
                hidden_size=hidden,
                direction="bidirectional",
            )
            apart = graph.plain(
                "Transpose", [f"rnn.sides.{layer}"], f"rnn.apart.{layer}", perm=[0, 2, 1, 3]
            )
            state = graph.plain("Reshape", [apart, "spans.joined"], f"rnn.state.{layer}")
        return graph.plain("Transpose", [state], "rnn.output", perm=[1, 0, 2])

    def _gates(self, kind: str, side: str) -> Any:
        parts = np.split(self.graph.weights[f"rnn.lstm.{kind}_{side}"], len(_GATES))
        return np.concatenate([parts[gate] for gate in _GATES])
