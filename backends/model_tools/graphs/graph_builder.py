"""Collects the nodes and weights of an ONNX graph in one precision."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sluicegate.backends.model_tools.graphs.adapters import (
    CHOICES,
    DOWN,
    UP,
    adapted_modules,
)
from sluicegate.backends.model_tools.graphs.options import Output, Precision
from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError
from sluicegate.backends.types import TOKEN_TYPES

FUSED = "com.microsoft"
_OPSETS = {"": 20, FUSED: 1}
_IR_VERSION = 10
_LARGEST_HALF = float(np.finfo(np.float16).max)
TYPES: Mapping[Precision, int] = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"]
_GELUS: Mapping[str, str] = MappingProxyType({"gelu": "Gelu", "gelu_tanh": "FastGelu"})
# The factor of the input of the sigmoid by which these activations multiply their input.
_SLOPES: Mapping[str, float] = MappingProxyType({"silu": 1.0, "quick_gelu": 1.702})

# Takes the name and the values of a weight. If the weight is in another file, returns a tensor that
# names the file and the place in it.
StoredWeights = Callable[[str, NDArray[np.float32]], TensorProto | None]


def nothing_stored(name: str, tensor: NDArray[np.float32]) -> None:
    """Say that no weight is in another file."""


class GraphBuilder:
    """Collects the nodes of a graph and its initializers (constant tensors).

    Most methods append nodes or initializers, and return the name of the output. `stored` weights
    remain in another file. When the graph is loaded, they are read from that file and cast to the
    graph's precision. A `plain` graph uses only ONNX's own operators.
    """

    def __init__(
        self,
        weights: Weights,
        precision: Precision = "fp32",
        *,
        plain: bool = False,
        stored: StoredWeights = nothing_stored,
    ) -> None:
        self.weights = weights
        self.precision = precision
        self.is_plain = plain
        self._stored = stored
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._added: dict[tuple[int, Precision, bool], str] = {}
        self._chosen = ""
        self._used: set[str] = set()
        self._adapted: set[str] = set()

    @property
    def has_adapters(self) -> bool:
        """Whether each row chooses one of several adapters."""
        return CHOICES in self.weights

    def check_adapters(self) -> None:
        """Check that every layer was written with its adapters.

        Raises:
            WeightsError: a weight was used without the adapters of its layer.
        """
        for module in sorted(adapted_modules(self.weights) - self._adapted):
            if f"{module}.weight" in self._used:
                raise WeightsError(
                    f"the adapters of `{module}` cannot be chosen by a row; import each apart"
                )

    def read_adapters(self, types: str) -> str:
        """Append nodes that read the adapters of tokens from their types; return the types alone.

        Call this before a layer that may have adapters.
        """
        if not self.has_adapters:
            return types
        table = np.repeat(self.weights[CHOICES], TOKEN_TYPES, axis=0)
        known = self.constant("adapters.types", np.array(TOKEN_TYPES, dtype=np.int32))
        choices = self.floats("adapters.table", table)
        self._chosen = self.plain("Gather", [choices, types], "adapters.chosen")
        return self.plain("Mod", [types, known], "adapters.plain_types")

    def weight(
        self, name: str, precision: Precision | None = None, *, transposed: bool = False
    ) -> str:
        """Append the weight `name`, in the graph's precision if no `precision` is given.

        A weight that several layers share is stored once.
        """
        tensor = self.weights[name]
        self._used.add(name)
        key = (id(tensor), precision or self.precision, transposed)
        if key not in self._added:
            given = tensor.T if transposed else tensor
            self._added[key] = self.floats(name, given, precision)
        return self._added[key]

    def norm(self, prefix: str, precision: Precision | None = None) -> list[str]:
        """Append the weight and the bias of a layer normalization."""
        return [self.weight(f"{prefix}.{part}", precision) for part in ("weight", "bias")]

    def floats(
        self, name: str, tensor: NDArray[np.float32], precision: Precision | None = None
    ) -> str:
        """Append floats as an initializer, in the graph's precision if no `precision` is given.

        Raises:
            WeightsError: a value is too large for the precision.
        """
        wanted = precision or self.precision
        stored = self._stored(name, tensor)
        if stored is None:
            self.initializers.append(_tensor(name, tensor, wanted))
            return name
        self.initializers.append(stored)
        if wanted == "fp32":
            return name
        return self.plain("Cast", [name], f"{name}.{wanted}", to=TYPES[wanted])

    def constant(self, name: str, tensor: NDArray[np.float32 | np.int32 | np.int64]) -> str:
        """Append a constant of any type."""
        self.initializers.append(numpy_helper.from_array(np.asarray(tensor, order="C"), name))
        return name

    def plain(
        self, operator: str, inputs: list[str], *outputs: str, **attributes: float | str | list[int]
    ) -> str:
        """Append a node with one of ONNX's standard operators."""
        self._add(operator, inputs, outputs, "", attributes)
        return outputs[0]

    def fused(self, operator: str, inputs: list[str], *outputs: str, **attributes: float) -> str:
        """Append a node with one of ONNX Runtime's fused operators."""
        self._add(operator, inputs, outputs, FUSED, attributes)
        return outputs[0]

    def gelu(self, operator: str, inputs: list[str], output: str) -> str:
        """Append the GELU of the sum of `inputs`; `FastGelu` is the tanh approximation."""
        if not self.is_plain:
            return self.fused(operator, inputs, output)
        state = inputs[0]
        if inputs[1:]:
            state = self.plain("Add", inputs, f"{output}.biased")
        approximation = "tanh" if operator == "FastGelu" else "none"
        return self.plain("Gelu", [state], output, approximate=approximation)

    def activate(self, activation: Activation, state: str, output: str) -> str:
        """Append an activation."""
        if activation in _GELUS:
            return self.gelu(_GELUS[activation], [state], output)
        if activation == "relu":
            return self.plain("Relu", [state], output)
        slope = _SLOPES[activation]
        if not self.is_plain:
            return self.fused("QuickGelu", [state], output, alpha=slope)
        steep = state
        if slope != 1:
            factor = self.constant(f"{output}.slope", np.array(slope, dtype=np.float32))
            steep = self.plain("Mul", [state, factor], f"{output}.steep")
        gate = self.plain("Sigmoid", [steep], f"{output}.gate")
        return self.plain("Mul", [state, gate], output)

    def matmul(self, prefix: str, inputs: str) -> str:
        """Append the product with the weight of a linear layer, without the layer's bias."""
        kernel = self.weight(f"{prefix}.weight", transposed=True)
        product = self.plain("MatMul", [inputs, kernel], prefix)
        if f"{prefix}.{DOWN}" not in self.weights:
            return product
        down = self.weight(f"{prefix}.{DOWN}", transposed=True)
        narrow = self.plain("MatMul", [inputs, down], f"{prefix}.narrow")
        return self._adapt(prefix, product, narrow, self.weight(f"{prefix}.{UP}", transposed=True))

    def embed(self, prefix: str, ids: str, output: str) -> str:
        """Append a look-up in a table of embeddings."""
        rows = self.plain("Gather", [self.weight(f"{prefix}.weight"), ids], output)
        if f"{prefix}.{DOWN}" not in self.weights:
            return rows
        narrow = self.plain("Gather", [self.weight(f"{prefix}.{UP}"), ids], f"{output}.narrow")
        return self._adapt(prefix, rows, narrow, self.weight(f"{prefix}.{DOWN}"))

    def _adapt(self, prefix: str, state: str, narrow: str, wide: str) -> str:
        """Append the sum of `state` and of what the chosen adapters make of `narrow`."""
        self._adapted.add(prefix)
        self.plain("Mul", [narrow, self._chosen], f"{narrow}.chosen")
        self.plain("MatMul", [f"{narrow}.chosen", wide], f"{narrow}.change")
        return self.plain("Add", [state, f"{narrow}.change"], f"{state}.adapted")

    def linear(self, prefix: str, inputs: str, *, biased: bool = True) -> str:
        """Append a linear layer: the product with its weight, plus its bias if it is `biased`."""
        if not biased:
            return self.matmul(prefix, inputs)
        bias = self.weight(f"{prefix}.bias")
        return self.plain("Add", [self.matmul(prefix, inputs), bias], f"{prefix}.biased")

    def layer_norm(self, prefix: str, state: str, output: str, *, epsilon: float) -> str:
        """Append a layer normalization with its weights."""
        return self.plain(
            "LayerNormalization", [state, *self.norm(prefix)], output, epsilon=epsilon
        )

    def rms_norm(self, prefix: str, state: str, output: str, *, epsilon: float) -> str:
        """Append a normalization by the root of the mean square, with its weight."""
        weight = self.weight(f"{prefix}.weight")
        if not self.is_plain:
            return self.plain(
                "SimplifiedLayerNormalization", [state, weight], output, epsilon=epsilon
            )
        axis = self.constant(f"{output}.axis", np.array([-1], dtype=np.int64))
        least = self.constant(f"{output}.epsilon", np.array(epsilon, dtype=np.float32))
        self.plain("Mul", [state, state], f"{output}.squares")
        self.plain("ReduceMean", [f"{output}.squares", axis], f"{output}.mean")
        self.plain("Add", [f"{output}.mean", least], f"{output}.positive")
        self.plain("Sqrt", [f"{output}.positive"], f"{output}.root")
        self.plain("Div", [state, f"{output}.root"], f"{output}.scaled")
        return self.plain("Mul", [f"{output}.scaled", weight], output)

    def feed_forward(
        self,
        prefix: str,
        context: str,
        state: str,
        output: str,
        *,
        epsilon: float,
        activation: str = "BiasGelu",
    ) -> str:
        """Append the steps that follow attention in a BERT layer.

        `context` is the output of attention, and `state` the input of attention.
        """
        attended = f"{prefix}.attention.output"
        state = self._dense_add_norm(attended, context, state, attended, epsilon)
        inner = self.matmul(f"{prefix}.intermediate.dense", state)
        bias = self.weight(f"{prefix}.intermediate.dense.bias")
        wide = self.gelu(activation, [inner, bias], f"{prefix}.intermediate")
        return self._dense_add_norm(f"{prefix}.output", wide, state, output, epsilon)

    def _dense_add_norm(
        self, prefix: str, inputs: str, residual: str, output: str, epsilon: float
    ) -> str:
        biased = self.linear(f"{prefix}.dense", inputs)
        summed = self.plain("Add", [biased, residual], f"{prefix}.sum")
        return self.layer_norm(f"{prefix}.LayerNorm", summed, output, epsilon=epsilon)

    def model(self, name: str, inputs: Sequence[str], output: Output, hidden: int) -> ModelProto:
        """Return the model: `inputs` are int32 `[batch, sequence]`, and the output is float32."""
        self.check_adapters()
        rows: list[str | int | None] = ["batch", "sequence"]
        size = [*(rows if output == "tokens" else rows[:1]), hidden]
        return helper.make_model(
            helper.make_graph(
                self.nodes,
                name,
                [helper.make_tensor_value_info(each, TensorProto.INT32, rows) for each in inputs],
                [helper.make_tensor_value_info(output, TensorProto.FLOAT, size)],
                self.initializers,
            ),
            producer_name="sluicegate",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid(domain, _OPSETS[domain]) for domain in _OPSETS],
        )

    def _add(
        self,
        operator: str,
        inputs: list[str],
        outputs: tuple[str, ...],
        domain: str,
        attributes: Mapping[str, float | str | list[int]],
    ) -> None:
        node: NodeProto = helper.make_node(operator, inputs, outputs, outputs[0], domain=domain)
        node.attribute.extend(helper.make_attribute(name, attributes[name]) for name in attributes)
        self.nodes.append(node)


def copy_model(model: ModelProto) -> ModelProto:
    """Return a deep copy."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _tensor(name: str, tensor: NDArray[np.float32], precision: Precision) -> TensorProto:
    tensor = np.ascontiguousarray(tensor)
    if precision == "fp32":
        return numpy_helper.from_array(tensor, name)
    if precision == "bf16":
        raw = _bfloat16(tensor).tobytes()
        return helper.make_tensor(name, TensorProto.BFLOAT16, tensor.shape, raw, raw=True)
    if np.abs(tensor).max(initial=0.0) > _LARGEST_HALF:
        raise WeightsError(f"the weight `{name}` has a value that is too large for fp16; use bf16")
    return numpy_helper.from_array(tensor.astype(np.float16), name)


def _bfloat16(tensor: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper half of each float, rounded to nearest, ties to even."""
    bits = tensor.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (rounded >> np.uint32(16)).astype("<u2")
