"""A BERT encoder as an ONNX graph of ONNX Runtime's fused operators, built without torch.

Inputs, int32 [batch, sequence]: `input_ids`, `attention_mask`, `token_type_ids`. Rows must be
padded on the right: the fused attention takes the number of real tokens, not the mask.
Outputs, float32: `pooled` [batch, hidden], the mean over the real tokens, not normalised, and
`tokens` [batch, sequence, hidden], the last hidden state (of no meaning at padding).

Measured on a CPU: `BiasGelu`, `Add` + `Gelu` and attention by mask or by mask index cost the same
and give the same bits; `FastGelu` is 1 % faster and wrong in the third decimal, so it is not used.
`SkipLayerNormalization` takes six times as long there as the `Add` and `LayerNormalization` written
here, which ONNX Runtime fuses to it on a GPU, where it is the faster one.
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
    graph = _Graph(shape, weights)
    state = graph.embed()
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        state = graph.encode(layer, state, output=TOKENS if last else f"state.{layer}")
    graph.pool(state)
    return helper.make_model(
        _proto(shape, graph),
        producer_name="sluicegate",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid(name, version) for name, version in _OPSETS.items()],
    )


def _proto(shape: BertShape, graph: "_Graph") -> GraphProto:
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


class _Graph:
    """The nodes and initializers so far; a method adds a part and returns its output's name."""

    def __init__(self, shape: BertShape, weights: Weights) -> None:
        self._shape = shape
        self._weights = weights
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []

    def embed(self) -> str:
        """Add the embeddings; also makes `lengths`, the number of real tokens per row."""
        prefix = "embeddings"
        inputs = [
            "input_ids",
            "token_type_ids",
            self._weight(f"{prefix}.word_embeddings.weight"),
            self._weight(f"{prefix}.position_embeddings.weight"),
            self._weight(f"{prefix}.token_type_embeddings.weight"),
            *self._norm(f"{prefix}.LayerNorm"),
            "attention_mask",
        ]
        return self._fused(
            "EmbedLayerNormalization",
            inputs,
            [prefix, "lengths"],
            epsilon=self._shape.layer_norm_epsilon,
        )

    def encode(self, layer: int, state: str, *, output: str) -> str:
        """Add one layer: attention, then feed-forward, each added to its input and normalised."""
        prefix = f"encoder.layer.{layer}"
        context = self._attention(f"{prefix}.attention.self", state)
        attended = f"{prefix}.attention.output"
        state = self._dense_add_norm(attended, context, state, output=attended)
        inner = self._matmul(f"{prefix}.intermediate.dense", state)
        bias = self._weight(f"{prefix}.intermediate.dense.bias")
        wide = self._fused("BiasGelu", [inner, bias], [f"{prefix}.intermediate"])
        return self._dense_add_norm(f"{prefix}.output", wide, state, output=output)

    def pool(self, state: str) -> None:
        """Add the mean of `state` over the real tokens of a row."""
        axis = self._initializer("axis", np.array([1], dtype=np.int64))
        # An empty row pools to zeros, not to NaN.
        least = self._initializer("least", np.array(1, dtype=np.float32))
        self._plain("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        self._plain("Unsqueeze", ["mask", axis], "selector")
        self._plain("MatMul", ["selector", state], "sums")
        self._plain("Squeeze", ["sums", axis], "sum")
        self._plain("ReduceSum", ["mask", axis], "real", keepdims=1)
        self._plain("Max", ["real", least], "count")
        self._plain("Div", ["sum", "count"], POOLED)

    def _attention(self, prefix: str, state: str) -> str:
        # One product for query, key and value: [hidden, 3 * hidden].
        parts = [f"{prefix}.{name}" for name in ("query", "key", "value")]
        kernel = np.concatenate([self._weights[f"{part}.weight"].T for part in parts], axis=1)
        bias = np.concatenate([self._weights[f"{part}.bias"] for part in parts])
        inputs = [
            state,
            self._initializer(f"{prefix}.weight", kernel),
            self._initializer(f"{prefix}.bias", bias),
            "lengths",
        ]
        return self._fused("Attention", inputs, [prefix], num_heads=self._shape.heads)

    def _dense_add_norm(self, prefix: str, inputs: str, residual: str, *, output: str) -> str:
        product = self._matmul(f"{prefix}.dense", inputs)
        bias = self._weight(f"{prefix}.dense.bias")
        biased = self._plain("Add", [product, bias], f"{prefix}.dense.biased")
        summed = self._plain("Add", [biased, residual], f"{prefix}.sum")
        return self._plain(
            "LayerNormalization",
            [summed, *self._norm(f"{prefix}.LayerNorm")],
            output,
            epsilon=self._shape.layer_norm_epsilon,
        )

    def _matmul(self, prefix: str, inputs: str) -> str:
        kernel = self._initializer(f"{prefix}.weight", self._weights[f"{prefix}.weight"].T)
        return self._plain("MatMul", [inputs, kernel], prefix)

    def _norm(self, prefix: str) -> list[str]:
        return [self._weight(f"{prefix}.weight"), self._weight(f"{prefix}.bias")]

    def _weight(self, name: str) -> str:
        return self._initializer(name, self._weights[name])

    def _initializer(self, name: str, tensor: NDArray[np.float32] | NDArray[np.int64]) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(tensor), name))
        return name

    def _plain(self, operator: str, inputs: list[str], output: str, **attributes: float) -> str:
        self.nodes.append(_node(operator, inputs, [output], "", attributes))
        return output

    def _fused(
        self, operator: str, inputs: list[str], outputs: list[str], **attributes: float
    ) -> str:
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
