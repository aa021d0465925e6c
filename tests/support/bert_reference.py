"""Computes BERT's forward pass in numpy and float64, one row at a time, as in its paper."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.model_tools.graphs.shapes import BertShape

Array = NDArray[np.float64]


def reference_tokens(
    shape: BertShape, weights: Mapping[str, NDArray[np.float32]], ids: list[int], types: list[int]
) -> Array:
    """Return the last hidden state of one row without padding."""
    exact = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    state = (
        exact["embeddings.word_embeddings.weight"][ids]
        + exact["embeddings.position_embeddings.weight"][_positions(shape, ids)]
        + exact["embeddings.token_type_embeddings.weight"][types]
    )
    state = _norm(exact, "embeddings.LayerNorm", state, shape)
    for layer in range(shape.layers):
        prefix = f"encoder.layer.{layer}"
        context = _attention(exact, f"{prefix}.attention.self", state, shape.heads)
        context = _dense(exact, f"{prefix}.attention.output.dense", context)
        state = _norm(exact, f"{prefix}.attention.output.LayerNorm", state + context, shape)
        inner = _gelu(_dense(exact, f"{prefix}.intermediate.dense", state))
        inner = _dense(exact, f"{prefix}.output.dense", inner)
        state = _norm(exact, f"{prefix}.output.LayerNorm", state + inner, shape)
    return state


def _positions(shape: BertShape, ids: list[int]) -> NDArray[np.int64]:
    if shape.padding is None:
        return np.arange(len(ids))
    real = np.array(ids) != shape.padding
    counted: NDArray[np.int64] = np.cumsum(real) * real
    return counted


def _dense(exact: Mapping[str, Array], name: str, state: Array) -> Array:
    return state @ exact[f"{name}.weight"].T + exact[f"{name}.bias"]


def _attention(exact: Mapping[str, Array], prefix: str, state: Array, heads: int) -> Array:
    parts = [_dense(exact, f"{prefix}.{name}", state) for name in ("query", "key", "value")]
    query, key, value = (np.stack(np.split(part, heads, axis=1)) for part in parts)
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[2])
    scores = np.exp(scores - scores.max(axis=2, keepdims=True))
    context: Array = scores / scores.sum(axis=2, keepdims=True) @ value
    return np.concatenate(list(context), axis=1)


def _norm(exact: Mapping[str, Array], name: str, state: Array, shape: BertShape) -> Array:
    centred = state - state.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    scaled: Array = centred / np.sqrt(variance + shape.layer_norm_epsilon)
    return scaled * exact[f"{name}.weight"] + exact[f"{name}.bias"]


def _gelu(values: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(values * (1 + erf(values / math.sqrt(2))) / 2)
