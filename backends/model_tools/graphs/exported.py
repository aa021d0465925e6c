"""Reads a checkpoint's weights from a graph that torch or optimum exported.

Exporters keep the names of most weights. But they replace the matrix of a product by a transposed
copy with a generated name. This module finds the original name in one of two ways. It reads the
name of the bias that is added to the product, or else the path of the layer to which the product
belongs. The TorchScript exporter stores this path as the name of the node. The newer exporter of
torch stores it as a property of the node.
"""

import ast
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from sluicegate.backends.model_tools.graphs.weights import Weights, WeightsError

# Every family has a weight with one of these names. The part before it is the model's prefix.
_EMBEDDINGS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
_MATRIX = 2
_BIAS = 2


def read_exported(model: ModelProto) -> Weights:
    """Return the weights of a graph; keys are the names in the checkpoint, if these are known.

    Raises:
        WeightsError: the graph does not look like an export of a checkpoint.
    """
    tensors = {name: numpy_helper.to_array(found) for name, found in _tensors(model.graph)}
    weights = {name: tensor for name, tensor in tensors.items() if tensor.dtype == np.float32}
    for node in model.graph.node:
        if node.op_type == "Identity" and node.input[0] in weights:
            weights[node.output[0]] = weights[node.input[0]]
    return _without_wrapper({**weights, **dict(_kernels(model.graph, weights))})


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _kernels(graph: GraphProto, weights: Weights) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the matrices of products as `[outputs, inputs]`, with their names in the checkpoint."""
    added = {
        each: other
        for node in graph.node
        if node.op_type == "Add"
        for each, other in (node.input, reversed(node.input))
    }
    for node in graph.node:
        if node.op_type not in {"MatMul", "Gemm"} or node.input[1] not in weights:
            continue
        kernel = weights[node.input[1]]
        if kernel.ndim != _MATRIX:
            continue
        bias = node.input[_BIAS] if len(node.input) > _BIAS else added.get(node.output[0], "")
        yield _name(node, bias), kernel if _is_transposed(node) else kernel.T


def _name(node: NodeProto, bias: str) -> str:
    """Return the name of a product's weight in the checkpoint.

    If the weight's name in the graph was generated, its original name follows from the bias, or
    else from the path of the layer.
    """
    given = str(node.input[1])
    if given.endswith(".weight"):
        return given
    if bias.endswith(".bias"):
        return f"{bias.removesuffix('.bias')}.weight"
    scopes = [each.value for each in node.metadata_props if each.key.endswith("name_scopes")]
    if scopes:
        *_, path, _ = ast.literal_eval(scopes[0])
    else:
        path = node.name.strip("/").rpartition("/")[0].replace("/", ".")
    return f"{path}.weight"


def _is_transposed(node: NodeProto) -> bool:
    return any(attribute.name == "transB" and attribute.i for attribute in node.attribute)


def _without_wrapper(weights: Mapping[str, NDArray[np.float32]]) -> Weights:
    found = [(name, end) for name in weights for end in _EMBEDDINGS if name.endswith(end)]
    if not found:
        raise WeightsError("the graph has no embeddings with a name that exporters use")
    name, end = found[0]
    prefix = name.removesuffix(end)
    return {each.removeprefix(prefix): tensor for each, tensor in weights.items()}
