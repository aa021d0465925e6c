"""Writes the nodes that compute attention in one layer, for each kind of kernel.

`GraphOptions` describes the kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from backends.model_tools.graphs.graph_builder import GraphBuilder
from backends.model_tools.graphs.options import Attention

_NAMES = ("query", "key", "value")


def attend_rows(
    graph: GraphBuilder,
    kind: Attention,
    prefix: str,
    state: str,
    *,
    heads: int,
    masking: Sequence[str],
) -> str:
    """Append the nodes that compute attention over `state` in one layer.

    Return the name of the result, to which the layer's output projection is not yet applied.
    `masking` names the tensors by which the kernel tells real tokens from padding.
    """
    operator, project = _KERNELS[kind]
    inputs = [*project(graph, prefix, state, heads), *masking]
    return graph.fused(operator, inputs, prefix, num_heads=heads)


def add_ranges(graph: GraphBuilder, *, mask: str, lengths: str) -> str:
    """Append nodes that compute where rows begin: `[3 * rows + 2]` integers.

    The attention kernel reads this tensor. Its first part is the length of every row. Its second
    part is the index of every row's first token, and then the number of all tokens, including
    padding. Its third part repeats the second part.

    The integers are computed from the values of the inputs, not from their shapes. Shapes are
    computed on the CPU, and a graph that needs the CPU cannot become a CUDA graph.
    """
    axis = graph.constant("ranges.axis", np.array([1], dtype=np.int64))
    first = graph.constant("ranges.first", np.array([0], dtype=np.int32))
    one = graph.constant("ranges.one", np.array(1, dtype=np.int32))
    zero = graph.constant("ranges.zero", np.array(0, dtype=np.int32))
    rows = graph.constant("ranges.rows", np.array(0, dtype=np.int64))
    graph.plain("Mul", [mask, zero], "ranges.zeros")
    graph.plain("Add", ["ranges.zeros", one], "ranges.ones")
    graph.plain("ReduceSum", ["ranges.ones", axis], "ranges.widths", keepdims=0)
    graph.plain("CumSum", ["ranges.widths", rows], "ranges.ends")
    graph.plain("Concat", [first, "ranges.ends"], "ranges.starts", axis=0)
    starts = ["ranges.starts", "ranges.starts"]
    return graph.plain("Concat", [lengths, *starts], "ranges", axis=0)


def _fused(graph: GraphBuilder, prefix: str, state: str, _heads: int) -> list[str]:
    """Append one weight, `[hidden, 3 * hidden]`, and one bias for query, key and value together."""
    kernel = np.concatenate([graph.weights[f"{prefix}.{name}.weight"].T for name in _NAMES], axis=1)
    return [state, graph.floats(f"{prefix}.weight", kernel), _bias(graph, prefix)]


def _separate(graph: GraphBuilder, prefix: str, state: str, _heads: int) -> list[str]:
    """Append three products, for query, key and value, and one bias for all of them."""
    products = [graph.matmul(f"{prefix}.{name}", state) for name in _NAMES]
    return [*products, _bias(graph, prefix)]


def _interleaved(graph: GraphBuilder, prefix: str, state: str, heads: int) -> list[str]:
    """Append one product; for each head, its columns are query, then key, then value."""
    kernels = [graph.weights[f"{prefix}.{name}.weight"].T for name in _NAMES]
    hidden = kernels[0].shape[0]
    width = hidden // heads
    split = [kernel.reshape(hidden, heads, 1, width) for kernel in kernels]
    kernel = np.concatenate(split, axis=2).reshape(hidden, 3 * hidden)
    weight = graph.floats(f"{prefix}.weight", kernel)
    product = graph.plain("MatMul", [state, weight], f"{prefix}.qkv.flat")
    shape = graph.constant(f"{prefix}.shape", np.array([-1, heads, 3, width], dtype=np.int64))
    qkv = graph.plain("Reshape", [product, shape], f"{prefix}.qkv")
    return [qkv, "", "", _bias(graph, prefix)]


def _bias(graph: GraphBuilder, prefix: str) -> str:
    bias = np.concatenate([graph.weights[f"{prefix}.{name}.bias"] for name in _NAMES])
    return graph.floats(f"{prefix}.bias", bias)


_Projection = Callable[[GraphBuilder, str, str, int], list[str]]
_KERNELS: Mapping[Attention, tuple[str, _Projection]] = MappingProxyType(
    {
        "fused": ("Attention", _fused),
        "heads": ("MultiHeadAttention", _separate),
        "ranges": ("MultiHeadAttention", _separate),
        "packed": ("PackedMultiHeadAttention", _separate),
        "packed-qkv": ("PackedMultiHeadAttention", _interleaved),
        "packed-fused": ("PackedAttention", _fused),
    }
)
