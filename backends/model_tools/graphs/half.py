"""Converts an fp32 graph to compute in fp16, with outputs in fp32."""

from collections.abc import Collection, Iterator, Sequence

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper
from onnx.shape_inference import InferenceError, infer_shapes
from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
    convert_float_to_float16,
)

# Tensors up to this many bytes are kept for shape inference, because shapes depend only on small
# tensors.
_LARGE = 1024
_EXACT = ".exact"


def halve(model: ModelProto) -> ModelProto:
    """Return the graph in fp16, by ONNX Runtime's converter.

    Nodes after the last layer normalization stay in fp32. They compute the pooling, and its sums
    over long rows can be too large for fp16. In all other nodes, values that are too large for fp16
    are clipped, such as the score that masks padding.
    """
    outputs = [*model.graph.output]
    values = {value.name: value for value in (*outputs, *infer_types(model))}
    first, rest = _split([*model.graph.node])
    read = {name for node in rest for name in _reads(node)} | {value.name for value in outputs}
    made = [name for node in first for name in node.output if name in read]
    if not values.keys() >= {*made}:
        # The types of some values are unknown, so the split is impossible and all nodes become
        # fp16.
        first, rest, read = [*first, *rest], [], {value.name for value in outputs}
        made = [value.name for value in outputs]

    exact = _without_graph(model)
    exact.graph.node.extend(first)
    exact.graph.value_info.extend(values.values())
    exact.graph.output.extend(values[name] for name in made)
    within = {name for node in first for name in _reads(node)}
    exact.graph.initializer.extend(t for t in model.graph.initializer if t.name in within)
    # The converted part keeps fp32 inputs and outputs, so the nodes after it read fp32.
    half: ModelProto = convert_float_to_float16(exact, keep_io_types=True, disable_shape_infer=True)

    shared = {t.name for t in model.graph.initializer if t.name in within & read}
    for tensor in model.graph.initializer:
        if tensor.name in read:
            half.graph.initializer.add().CopyFrom(tensor)
            half.graph.initializer[-1].name += _EXACT * (tensor.name in shared)
    for node in rest:
        half.graph.node.add().CopyFrom(node)
        own = half.graph.node[-1].input
        own[:] = [name + _EXACT * (name in shared) for name in own]
    del half.graph.value_info[:], half.graph.output[:]
    half.graph.output.extend(outputs)
    return half


def is_half(model: ModelProto) -> bool:
    """Return whether the matrices of a graph are in fp16."""
    kinds = {each.data_type for each in model.graph.initializer if len(each.dims) > 1}
    return TensorProto.FLOAT16 in kinds and TensorProto.FLOAT not in kinds


def infer_types(model: ModelProto) -> Iterator[ValueInfoProto]:
    """Yield the type of every value of a graph, as far as `onnx` can infer it.

    The output of an operator that `onnx` does not know, such as a fused operator, is assumed to be
    a float tensor. If the types in a graph contradict each other, nothing is yielded.
    """
    light = _without_graph(model)
    light.graph.node.extend(model.graph.node)
    light.graph.output.extend(model.graph.output)
    given = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _LARGE:
            light.graph.initializer.add().CopyFrom(tensor)
        elif tensor.name not in given:
            shape = [*tensor.dims]
            light.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
            )
    opsets = {each.domain: each.version for each in model.opset_import}
    named = {value.name for value in model.graph.output}
    functions = {(each.domain, each.name) for each in model.functions}
    for node in model.graph.node:
        version = opsets.get(node.domain, 1)
        is_known = defs.has(node.op_type, version, node.domain)
        is_known = is_known or (node.domain, node.op_type) in functions
        if not is_known and node.output[0] not in named:
            light.graph.value_info.append(
                helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
            )
    try:
        inferred = infer_shapes(light).graph
    except InferenceError:
        return
    yield from inferred.value_info
    yield from inferred.output


def _without_graph(model: ModelProto) -> ModelProto:
    """Return a model with the same versions, name and inputs, but without nodes."""
    graph = GraphProto(name=model.graph.name)
    graph.input.extend(model.graph.input)
    return ModelProto(
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        opset_import=model.opset_import,
        functions=model.functions,
        metadata_props=model.metadata_props,
        graph=graph,
    )


def _split(nodes: Sequence[NodeProto]) -> tuple[list[NodeProto], list[NodeProto]]:
    """Return the nodes up to the last layer normalization, and the nodes after it.

    The first list has every node that a layer normalization depends on. If there is no layer
    normalization, the second list is empty.
    """
    needed: set[str] = set()
    first, rest = [], []
    for node in reversed(nodes):
        if _normalises(node) or not needed.isdisjoint(node.output):
            needed.update(_reads(node))
            first.append(node)
        else:
            rest.append(node)
    return (first[::-1], rest[::-1]) if first else ([*nodes], [])


def _normalises(node: NodeProto) -> bool:
    return node.op_type.endswith(("LayerNormalization", "RMSNormalization"))


def _reads(node: NodeProto) -> Collection[str]:
    """Return the values that a node reads, including values that only its subgraphs read."""
    inner = [a.g for a in node.attribute if a.HasField("g")]
    return {*node.input, *(name for graph in inner for each in graph.node for name in _reads(each))}
