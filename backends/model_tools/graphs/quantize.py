"""Rewrites an encoder's graph to compute products with weights in int8.

Every scale is a constant of the graph, so the output of a row depends only on that row. Other
operators stay in float: attention's own products, normalizations, GELU and embeddings.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from sluicegate.backends.model_tools.graphs.graph_builder import FUSED, copy_model
from sluicegate.backends.model_tools.graphs.ranges import ProductPlan
from sluicegate.backends.types import FloatArray

_MATRIX = 2
# Attributes that the quantized attention supports. A node with other attributes stays in float.
_ATTENTION_ATTRIBUTES = {"num_heads", "unidirectional", "mask_filter_value"}
_ATTENTION_INPUTS = 4


class Product(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Describes a product of activations and constant weights; `name` is the output's name."""

    name: str
    activations: str
    kernel: FloatArray


def find_products(model: ModelProto, folder: Path = Path()) -> list[Product]:
    """Return the products that can be computed in int8, in the order of the graph.

    `folder` has the files of weights to which the graph refers.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    return [
        Product(
            name=node.output[0],
            activations=node.input[0],
            kernel=numpy_helper.to_array(tensors[node.input[1]], base_dir=str(folder)),
        )
        for node in model.graph.node
        if _is_product(node, tensors)
    ]


def expose(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """Return the graph with the tensors `names` as additional outputs."""
    exposed = copy_model(model)
    known = {output.name for output in exposed.graph.output}
    for name in dict.fromkeys(names):
        if name not in known:
            value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            exposed.graph.output.append(value)
    return exposed


def quantize(model: ModelProto, plans: Mapping[str, ProductPlan]) -> ModelProto:
    """Return the graph in which each product with a plan is in int8, and all else is unchanged."""
    quantized = copy_model(model)
    rewriter = _Rewriter(quantized.graph, plans)
    nodes = [made for node in quantized.graph.node for made in rewriter.rewrite(node)]
    del quantized.graph.node[:]
    quantized.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in quantized.graph.initializer if tensor.name in used]
    del quantized.graph.initializer[:]
    quantized.graph.initializer.extend([*kept, *rewriter.initializers])
    if not any(opset.domain == FUSED for opset in quantized.opset_import):
        quantized.opset_import.append(helper.make_opsetid(FUSED, 1))
    return quantized


class _Rewriter:
    """Replaces nodes, and collects the tensors that the new nodes need."""

    def __init__(self, graph: GraphProto, plans: Mapping[str, ProductPlan]) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._plans = plans
        self.initializers: list[TensorProto] = []

    def rewrite(self, node: NodeProto) -> list[NodeProto]:
        """Return the nodes that replace `node`; `node` itself if it has no plan."""
        if not _is_product(node, self._tensors) or node.output[0] not in self._plans:
            return [node]
        name, plan = node.output[0], self._plans[node.output[0]]
        step = self._tensor(f"{name}.step", np.float32(plan.step))
        zero = self._tensor(f"{name}.zero", np.uint8(plan.zero))
        scaling, activations = self._scale(node, plan)
        whole = f"{name}.activations"
        quantizing = helper.make_node("QuantizeLinear", [activations, step, zero], [whole])
        weights = self._tensor(f"{name}.int8", plan.weights)
        steps = self._tensor(f"{name}.steps", plan.weight_steps)
        if node.op_type == "MatMul":
            bias = self._tensor(f"{name}.correction", plan.correction)
            inputs = [whole, weights, step, steps, zero, "", bias]
            return [*scaling, quantizing, _fused("MatMulIntegerToFloat", inputs, node)]
        bias = self._tensor(f"{name}.corrected", self._bias(node) + plan.correction)
        lengths = node.input[3] if len(node.input) >= _ATTENTION_INPUTS else ""
        inputs = [whole, weights, bias, step, steps, lengths, zero]
        return [*scaling, quantizing, _fused("QAttention", inputs, node)]

    def _scale(self, node: NodeProto, plan: ProductPlan) -> tuple[list[NodeProto], str]:
        """Return the nodes that divide activations by their factors, and the nodes' output."""
        if plan.factors is None:
            return [], node.input[0]
        scaled = f"{node.output[0]}.scaled"
        inverse = self._tensor(f"{node.output[0]}.inverse", 1 / plan.factors)
        return [helper.make_node("Mul", [node.input[0], inverse], [scaled])], scaled

    def _bias(self, node: NodeProto) -> FloatArray:
        bias: FloatArray = numpy_helper.to_array(self._tensors[node.input[2]])
        return bias

    def _tensor(self, name: str, value: np.ndarray | np.generic) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _fused(operator: str, inputs: list[str], node: NodeProto) -> NodeProto:
    made = helper.make_node(operator, inputs, list(node.output), node.name, domain=FUSED)
    made.attribute.extend(node.attribute)
    return made


def _is_product(node: NodeProto, tensors: Mapping[str, TensorProto]) -> bool:
    if node.op_type not in {"MatMul", "Attention"} or len(node.input) < _MATRIX:
        return False
    weights = tensors.get(node.input[1])
    if weights is None or weights.data_type != TensorProto.FLOAT or len(weights.dims) != _MATRIX:
        return False
    if node.op_type == "MatMul":
        return True
    given = [name for name in node.input[_ATTENTION_INPUTS:] if name]
    attributes = {attribute.name for attribute in node.attribute}
    return not given and attributes <= _ATTENTION_ATTRIBUTES and node.input[2] in tensors
