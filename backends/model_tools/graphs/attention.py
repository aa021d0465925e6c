"""Writes the attention of a layer for each kind of kernel (see `GraphForm`)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
import numpy as np

from backends.model_tools.graphs.form import Attention
from backends.model_tools.graphs.parts import Parts

_NAMES = ("query", "key", "value")


class Masking(msgspec.Struct, frozen=True, kw_only=True):
    """Names the tensors of real tokens: `mask`, or when packed `places` and row `ends`."""

    mask: str = ""
    places: str = ""
    ends: str = ""


def attend(
    parts: Parts, kind: Attention, prefix: str, state: str, *, heads: int, masking: Masking
) -> str:
    """Add the attention of one layer on `state`; returns the context, without its projection."""
    return _WRITERS[kind](parts, prefix, state, heads, masking)


def add_ranges(parts: Parts, *, mask: str, lengths: str) -> str:
    """Add, for every row, how long it is and where it begins: `[3 * rows + 2]` integers.

    Made of the inputs' values, not of their shapes: shapes are computed on the CPU, and a graph
    with a part on the CPU is no CUDA graph.
    """
    axis = parts.constant("ranges.axis", np.array([1], dtype=np.int64))
    first = parts.constant("ranges.first", np.array([0], dtype=np.int32))
    one = parts.constant("ranges.one", np.array(1, dtype=np.int32))
    zero = parts.constant("ranges.zero", np.array(0, dtype=np.int32))
    rows = parts.constant("ranges.rows", np.array(0, dtype=np.int64))
    parts.plain("Mul", [mask, zero], "ranges.zeros")
    parts.plain("Add", ["ranges.zeros", one], "ranges.ones")
    parts.plain("ReduceSum", ["ranges.ones", axis], "ranges.widths", keepdims=0)
    parts.plain("CumSum", ["ranges.widths", rows], "ranges.ends")
    parts.plain("Concat", [first, "ranges.ends"], "ranges.starts", axis=0)
    starts = ["ranges.starts", "ranges.starts"]
    return parts.plain("Concat", [lengths, *starts], "ranges", axis=0)


def _fused(parts: Parts, prefix: str, state: str, heads: int, masking: Masking) -> str:
    inputs = [state, *_projection(parts, prefix), masking.mask]
    return parts.fused("Attention", inputs, prefix, num_heads=heads)


def _heads(parts: Parts, prefix: str, state: str, heads: int, masking: Masking) -> str:
    inputs = [*_apart(parts, prefix, state), masking.mask]
    return parts.fused("MultiHeadAttention", inputs, prefix, num_heads=heads)


def _packed(parts: Parts, prefix: str, state: str, heads: int, masking: Masking) -> str:
    inputs = [*_apart(parts, prefix, state), masking.places, masking.ends]
    return parts.fused("PackedMultiHeadAttention", inputs, prefix, num_heads=heads)


def _packed_qkv(parts: Parts, prefix: str, state: str, heads: int, masking: Masking) -> str:
    """Add one product whose columns are ordered head, then query, key and value."""
    kernels = [parts.weights[f"{prefix}.{name}.weight"].T for name in _NAMES]
    hidden = kernels[0].shape[0]
    width = hidden // heads
    split = [kernel.reshape(hidden, heads, 1, width) for kernel in kernels]
    kernel = np.concatenate(split, axis=2).reshape(hidden, 3 * hidden)
    weight = parts.floats(f"{prefix}.weight", kernel)
    product = parts.plain("MatMul", [state, weight], f"{prefix}.qkv.flat")
    shape = np.array([-1, heads, 3, width], dtype=np.int64)
    qkv = parts.plain(
        "Reshape", [product, parts.constant(f"{prefix}.shape", shape)], f"{prefix}.qkv"
    )
    packing = [masking.places, masking.ends]
    inputs = [qkv, "", "", _bias(parts, prefix), *packing]
    return parts.fused("PackedMultiHeadAttention", inputs, prefix, num_heads=heads)


def _packed_fused(parts: Parts, prefix: str, state: str, heads: int, masking: Masking) -> str:
    packing = [masking.places, masking.ends]
    inputs = [state, *_projection(parts, prefix), *packing]
    return parts.fused("PackedAttention", inputs, prefix, num_heads=heads)


def _projection(parts: Parts, prefix: str) -> list[str]:
    """Add one kernel and bias for query, key and value: `[hidden, 3 * hidden]`."""
    kernel = np.concatenate([parts.weights[f"{prefix}.{name}.weight"].T for name in _NAMES], axis=1)
    return [parts.floats(f"{prefix}.weight", kernel), _bias(parts, prefix)]


def _apart(parts: Parts, prefix: str, state: str) -> list[str]:
    """Add query, key and value by three products, and their biases as one."""
    return [
        *(parts.matmul(f"{prefix}.{name}", state) for name in _NAMES),
        _bias(parts, prefix),
    ]


def _bias(parts: Parts, prefix: str) -> str:
    bias = np.concatenate([parts.weights[f"{prefix}.{name}.bias"] for name in _NAMES])
    return parts.floats(f"{prefix}.bias", bias)


_Writer = Callable[[Parts, str, str, int, Masking], str]
_WRITERS: Mapping[Attention, _Writer] = MappingProxyType(
    {
        "fused": _fused,
        "heads": _heads,
        "ranges": _heads,
        "packed": _packed,
        "packed-qkv": _packed_qkv,
        "packed-fused": _packed_fused,
    }
)
