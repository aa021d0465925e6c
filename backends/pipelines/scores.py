"""Computes scores, labels and normalized vectors from a model's outputs."""

import math
from array import array
from typing import Any, Literal

import numpy as np

from sluicegate.backends.types import FloatArray
from sluicegate.wire.protocol import Function

_DECIMALS = 6
# Up to this many labels, plain Python is faster than numpy.
_FEW_LABELS = 32


def softmax(logits: FloatArray) -> FloatArray:
    """Return the softmax along the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: FloatArray = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


def label_scores(logits: FloatArray, function: Function) -> FloatArray:
    """Return the scores of one text's labels as float32."""
    if function == "none" or len(logits) > _FEW_LABELS:
        return apply_function(logits, function)
    return np.array(_few_scores(logits.tolist(), function), dtype=np.float32)


def best_labels(
    logits: FloatArray, function: Function, top: int | None = None
) -> list[tuple[int, float]]:
    """Return each label's index and score, highest score first; equal scores keep their order."""
    if function == "none" or len(logits) > _FEW_LABELS:
        return best_first(apply_function(logits, function), top)
    # `array("f")` rounds to float32 like `label_scores`, in a third of the time.
    return _best_first(array("f", _few_scores(logits.tolist(), function)).tolist(), top)


def _few_scores(values: list[float], function: Literal["softmax", "sigmoid"]) -> list[float]:
    if function == "softmax":
        highest = max(values)
        values = [math.exp(value - highest) for value in values]
        total = sum(values)
        return [value / total for value in values]
    return [_logistic(value) for value in values]


def _logistic(value: float) -> float:
    # Neither formula overflows, and a small probability keeps its digits.
    if value >= 0.0:
        return 1.0 / (1.0 + math.exp(-value))
    power = math.exp(value)
    return power / (1.0 + power)


def sigmoid(logits: FloatArray) -> FloatArray:
    """Return the logistic function of each logit.

    It does not overflow, and small results are exact.
    """
    power = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1.0, power) / (1.0 + power), dtype=np.float32)


def apply_function(logits: FloatArray, function: Function) -> FloatArray:
    """Return the scores of logits."""
    if function == "softmax":
        return softmax(logits)
    return sigmoid(logits) if function == "sigmoid" else logits


def relu(values: FloatArray) -> FloatArray:
    """Return the values, with zero in place of negative values."""
    return np.maximum(values, np.float32(0.0))


def gelu(values: FloatArray) -> FloatArray:
    """Return the tanh approximation of GELU."""
    inner = 0.7978845608 * (values + 0.044715 * values**3)
    return np.asarray(0.5 * values * (1.0 + np.tanh(inner)), dtype=np.float32)


def normalize(vectors: FloatArray) -> FloatArray:
    """Return the vectors scaled to length one; a zero vector stays zero."""
    if len(vectors) == 1:
        # One row is the most common case, and needs fewer calls into numpy.
        row = vectors[0]
        return vectors * np.float32(1.0 / max(math.sqrt(row.dot(row)), 1e-12))
    lengths = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def written(score: float) -> float:
    """Return a score rounded to six decimals, as in responses."""
    return round(score, _DECIMALS)


def rounded(scores: FloatArray) -> list[float]:
    """Return scores rounded to six decimals, as in responses."""
    return [round(score, _DECIMALS) for score in scores.tolist()]


def exact(score: float | np.floating[Any]) -> float:
    """Return a float32 score, rounded to nine digits; the order of scores does not change."""
    return float(f"{score:.9g}")


def best_first(scores: FloatArray, top: int | None = None) -> list[tuple[int, float]]:
    """Return indices and scores, highest score first; equal scores keep their order."""
    return _best_first(scores.tolist(), top)


def _best_first(values: list[float], top: int | None) -> list[tuple[int, float]]:
    best = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:top]
    return [(place, values[place]) for place in best]
