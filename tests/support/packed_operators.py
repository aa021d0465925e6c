"""Implements ONNX Runtime's operators of packed graphs in numpy, after their documentation.

The CPU has no kernels for them; with these, `onnx.reference` runs a packed graph.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from typing_extensions import override

Array = NDArray[Any]
_DOMAIN = "com.microsoft"


def _norm(state: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    centred = state - state.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    normal: Array = centred / np.sqrt(variance + epsilon) * weight + bias
    return normal.astype(np.float32)


def _attend(query: Array, key: Array, value: Array, ends: Array) -> Array:
    """Attend within each sequence: arrays are `[tokens, heads, width]`."""
    context = np.zeros_like(query)
    for start, end in pairwise(ends):
        q, k, v = (part[start:end].transpose(1, 0, 2) for part in (query, key, value))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
        scores = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights = scores / scores.sum(axis=2, keepdims=True)
        context[start:end] = (weights @ v).transpose(1, 0, 2)
    return context.reshape(len(query), -1).astype(np.float32)


class EmbedLayerNormalization(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(
        self,
        ids: Array,
        types: Array,
        words: Array,
        places: Array,
        kinds: Array,
        weight: Array,
        bias: Array,
        mask: Array,
        epsilon: float,
    ) -> tuple[Array, ...]:
        state = words[ids] + places[: ids.shape[1]] + kinds[types]
        return _norm(state, weight, bias, epsilon), mask.sum(axis=1).astype(np.int32)


class RemovePadding(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(self, state: Array, lengths: Array) -> tuple[Array, ...]:
        rows, length, hidden = state.shape
        real = np.arange(length) < lengths[:, None]
        places = np.arange(rows * length).reshape(rows, length)
        order = np.concatenate([places[real], places[~real]]).reshape(rows, length)
        ends = np.concatenate([[0], lengths.cumsum()])
        packed = state.reshape(-1, hidden)[places[real]]
        longest = np.array([lengths.max()])
        return packed, *(part.astype(np.int32) for part in (order, ends, longest))


class RestorePadding(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(self, packed: Array, order: Array) -> tuple[Array, ...]:
        state = np.zeros((order.size, packed.shape[1]), dtype=packed.dtype)
        state[order.reshape(-1)[: len(packed)]] = packed
        return (state.reshape(*order.shape, -1),)


class PackedMultiHeadAttention(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array,
        _order: Array,
        ends: Array,
        num_heads: int,
    ) -> tuple[Array, ...]:
        parts = [p.reshape(len(p), num_heads, -1) for p in (query, key, value)]
        biases = bias.reshape(3, num_heads, -1)
        query, key, value = (part + b for part, b in zip(parts, biases, strict=True))
        return (_attend(query, key, value, ends),)


class SkipLayerNormalization(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(
        self, state: Array, skip: Array, weight: Array, shift: Array, bias: Array, epsilon: float
    ) -> tuple[Array, ...]:
        return (_norm(state + skip + bias, weight, shift, epsilon),)


class BiasGelu(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(self, state: Array, bias: Array) -> tuple[Array, ...]:
        wide = state + bias
        erf = np.vectorize(math.erf, otypes=[np.float64])
        return ((wide * (1 + erf(wide / math.sqrt(2))) / 2).astype(np.float32),)


OPERATORS = [
    EmbedLayerNormalization,
    RemovePadding,
    RestorePadding,
    PackedMultiHeadAttention,
    SkipLayerNormalization,
    BiasGelu,
]
