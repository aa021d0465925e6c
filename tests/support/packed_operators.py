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


def _attend(
    query: Array,
    key: Array,
    value: Array,
    ends: Array,
    added: Array | None = None,
    scale: float = 0.0,
) -> Array:
    """Attend within each sequence: arrays are `[tokens, heads, width]`.

    `added` `[rows or 1, heads or 1, length, length]` is added to the scores, which a `scale` is
    multiplied with, by default one over the root of the width.
    """
    context = np.zeros_like(query)
    scale = scale or 1 / math.sqrt(query.shape[2])
    for row, (start, end) in enumerate(pairwise(ends)):
        if start == end:
            continue  # a row that rounding up has added
        q, k, v = (part[start:end].transpose(1, 0, 2) for part in (query, key, value))
        scores = q @ k.transpose(0, 2, 1) * scale
        if added is not None:
            scores = scores + added[row if len(added) > 1 else 0, :, : end - start, : end - start]
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
        positions: Array | None = None,
        epsilon: float = 0.0,
    ) -> tuple[Array, ...]:
        numbers = np.arange(ids.shape[1]) if positions is None else positions
        state = words[ids] + places[numbers] + kinds[types]
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
        key: Array | None,
        value: Array | None,
        bias: Array | None,
        _order: Array,
        ends: Array,
        added: Array | None = None,
        num_heads: int = 0,
        scale: float = 0.0,
    ) -> tuple[Array, ...]:
        if key is None or value is None:
            parts = [query[:, :, part] for part in range(3)]  # [tokens, heads, 3, width]
        else:
            parts = [p.reshape(len(p), num_heads, -1) for p in (query, key, value)]
        if bias is not None:
            biases = bias.reshape(3, num_heads, -1)
            parts = [part + b for part, b in zip(parts, biases, strict=True)]
        query, key, value = parts
        return (_attend(query, key, value, ends, added, scale),)


class PackedAttention(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(
        self, state: Array, weights: Array, bias: Array, _order: Array, ends: Array, num_heads: int
    ) -> tuple[Array, ...]:
        parts = np.split(state @ weights + bias, 3, axis=1)
        query, key, value = (part.reshape(len(part), num_heads, -1) for part in parts)
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


class FastGelu(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(self, state: Array, bias: Array) -> tuple[Array, ...]:
        wide = state + bias
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return ((wide * (1 + np.tanh(inner)) / 2).astype(np.float32),)


class Gelu(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(self, state: Array, **_: str) -> tuple[Array, ...]:
        erf = np.vectorize(math.erf, otypes=[np.float64])
        return ((state * (1 + erf(state / math.sqrt(2))) / 2).astype(np.float32),)


class RotaryEmbedding(OpRun):
    op_domain = _DOMAIN

    @override
    def _run(
        self, state: Array, positions: Array, cosines: Array, sines: Array, **attributes: int
    ) -> tuple[Array, ...]:
        assert not any(attributes.values())
        rows, length, hidden = state.shape
        assert positions.shape == (rows, length)
        heads = state.reshape(rows, length, -1, 2, cosines.shape[1])
        low, high = heads[..., 0, :], heads[..., 1, :]
        cosine, sine = (table[positions][:, :, None, :] for table in (cosines, sines))
        rotated = np.stack([low * cosine - high * sine, high * cosine + low * sine], axis=3)
        return (rotated.reshape(rows, length, hidden),)


class GatherElements(OpRun):
    """Replaces that of `onnx.reference`, which fails where an axis has more than 64 places."""

    op_domain = ""

    @override
    def _run(self, values: Array, places: Array, axis: int) -> tuple[Array, ...]:
        return (np.take_along_axis(values, places, axis),)


OPERATORS = [
    EmbedLayerNormalization,
    RemovePadding,
    RestorePadding,
    PackedMultiHeadAttention,
    PackedAttention,
    SkipLayerNormalization,
    BiasGelu,
    FastGelu,
    Gelu,
    RotaryEmbedding,
    GatherElements,
]
