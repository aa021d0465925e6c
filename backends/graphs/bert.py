"""A BERT encoder as an ONNX graph of ONNX Runtime's fused operators, built without torch.

Inputs, int32 [batch, sequence]: `input_ids`, `attention_mask`, `token_type_ids`. Rows must be
padded on the right: the fused attention takes the number of real tokens, not the mask.
Outputs, float32: `pooled` [batch, hidden], the mean over the real tokens, not normalised, and
`tokens` [batch, sequence, hidden], the last hidden state (of no meaning at padding).

Measured on a CPU: `BiasGelu`, `Add` + `Gelu` and attention by mask or by mask index cost the same
and give the same bits; `FastGelu` is 1 % faster and wrong in the third decimal, so it is not used.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from backends.graphs.shapes import BertShape
from backends.graphs.weights import Weights, check_weights

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POOLED, TOKENS = "pooled", "tokens"

_FUSED = "com.microsoft"
_OPSETS = {"": 20, _FUSED: 1}
_IR_VERSION = 10


def build_bert(shape: BertShape, weights: Weights) -> ModelProto:
    """Return the encoder of `shape` with `weights`; equal arguments give equal bytes.

    Raises:
        WeightsError: the weights are not those of the shape.
    """
    check_weights(shape, weights)
    return assemble(shape, BertGraph(shape, weights))


def assemble(shape: BertShape, graph: "BertGraph") -> ModelProto:
    """Add every part to `graph` and return it as a model."""
    state = graph.embed()
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        state = graph.encode(layer, state, output=graph.last_state if last else f"state.{layer}")
    graph.pool(state)
    return helper.make_model(
        _proto(shape, graph),
        producer_name="sluicegate",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid(name, version) for name, version in _OPSETS.items()],
    )


def _proto(shape: BertShape, graph: "BertGraph") -> GraphProto:
    rows: list[int | str | None] = ["batch", "sequence"]
    pooled: list[int | str | None] = ["batch", shape.hidden]
    return helper.make_graph(
        graph.nodes,
        "bert",
        [helper.make_tensor_value_info(name, TensorProto.INT32, rows) for name in INPUTS],
        [
            helper.make_tensor_value_info(POOLED, TensorProto.FLOAT, pooled),
            helper.make_tensor_value_info(TOKENS, TensorProto.FLOAT, [*rows, shape.hidden]),
        ],
        graph.initializers,
    )


class BertGraph:
    """The nodes and initializers so far; a method adds a part and returns its output's name."""

    last_state = TOKENS

    def __init__(self, shape: BertShape, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []

    def embed(self) -> str:
        """Add the embeddings; also makes `lengths`, the number of real tokens per row."""
        prefix = "embeddings"
        inputs = [
            "input_ids",
            "token_type_ids",
            self.weight(f"{prefix}.word_embeddings.weight"),
            self.weight(f"{prefix}.position_embeddings.weight"),
            self.weight(f"{prefix}.token_type_embeddings.weight"),
            *self._norm(f"{prefix}.LayerNorm"),
            "attention_mask",
        ]
        return self.fused(
            "EmbedLayerNormalization",
            inputs,
            [prefix, "lengths"],
            epsilon=self.shape.layer_norm_epsilon,
        )

    def encode(self, layer: int, state: str, *, output: str) -> str:
        """Add one layer: attention, then feed-forward, each added to its input and normalised."""
        prefix = f"encoder.layer.{layer}"
        context = self.attention(f"{prefix}.attention.self", state)
        attended = f"{prefix}.attention.output"
        state = self._dense_add_norm(attended, context, state, output=attended)
        inner = self.matmul(f"{prefix}.intermediate.dense", state)
        bias = self.weight(f"{prefix}.intermediate.dense.bias")
        wide = self.fused("BiasGelu", [inner, bias], [f"{prefix}.intermediate"])
        return self._dense_add_norm(f"{prefix}.output", wide, state, output=output)

    def pool(self, state: str) -> None:
        """Add the mean of `state` over the real tokens of a row."""
        axis = self.initializer("axis", np.array([1], dtype=np.int64))
        # An empty row pools to zeros, not to NaN.
        least = self.initializer("least", np.array(1, dtype=np.float32))
        self.plain("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        self.plain("Unsqueeze", ["mask", axis], "selector")
        self.plain("MatMul", ["selector", state], "sums")
        self.plain("Squeeze", ["sums", axis], "sum")
        self.plain("ReduceSum", ["mask", axis], "real", keepdims=1)
        self.plain("Max", ["real", least], "count")
        self.plain("Div", ["sum", "count"], POOLED)

    def attention(self, prefix: str, state: str) -> str:
        """Add the attention of a layer over `state`, before its output's product."""
        # One product for query, key and value: [hidden, 3 * hidden].
        parts = [f"{prefix}.{name}" for name in ("query", "key", "value")]
        kernel = np.concatenate([self.weights[f"{part}.weight"].T for part in parts], axis=1)
        bias = np.concatenate([self.weights[f"{part}.bias"] for part in parts])
        inputs = [
            state,
            self.initializer(f"{prefix}.weight", kernel),
            self.initializer(f"{prefix}.bias", bias),
            "lengths",
        ]
        return self.fused("Attention", inputs, [prefix], num_heads=self.shape.heads)

    def _dense_add_norm(self, prefix: str, inputs: str, residual: str, *, output: str) -> str:
        product = self.matmul(f"{prefix}.dense", inputs)
        norm = self._norm(f"{prefix}.LayerNorm")
        bias = self.weight(f"{prefix}.dense.bias")
        return self.fused(
            "SkipLayerNormalization",
            [product, residual, *norm, bias],
            [output],
            epsilon=self.shape.layer_norm_epsilon,
        )

    def matmul(self, prefix: str, inputs: str) -> str:
        """Add the product with the weight of a linear layer, without its bias."""
        kernel = self.initializer(f"{prefix}.weight", self.weights[f"{prefix}.weight"].T)
        return self.plain("MatMul", [inputs, kernel], prefix)

    def _norm(self, prefix: str) -> list[str]:
        return [self.weight(f"{prefix}.weight"), self.weight(f"{prefix}.bias")]

    def weight(self, name: str) -> str:
        """Add a weight under its own name."""
        return self.initializer(name, self.weights[name])

    def initializer(self, name: str, tensor: NDArray[np.float32] | NDArray[np.int64]) -> str:
        """Add a constant."""
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(tensor), name))
        return name

    def plain(self, operator: str, inputs: list[str], output: str, **attributes: int) -> str:
        """Add an operator of ONNX itself."""
        self.nodes.append(_node(operator, inputs, [output], "", attributes))
        return output

    def fused(
        self, operator: str, inputs: list[str], outputs: list[str], **attributes: float
    ) -> str:
        """Add an operator of ONNX Runtime's; its first output is returned."""
        self.nodes.append(_node(operator, inputs, outputs, _FUSED, attributes))
        return outputs[0]


def _node(
    operator: str,
    inputs: list[str],
    outputs: list[str],
    domain: str,
    attributes: Mapping[str, float],
) -> NodeProto:
    node = helper.make_node(operator, inputs, outputs, outputs[0], domain=domain)
    node.attribute.extend(helper.make_attribute(name, attributes[name]) for name in attributes)
    return node
