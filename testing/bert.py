"""Builds BERT encoders with seeded weights and mean pooling, for tests."""

import math

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from sluicegate.backends.model_tools.graphs.bert import build_bert
from sluicegate.backends.model_tools.graphs.heads import add_pooling
from sluicegate.backends.model_tools.graphs.options import GraphOptions
from sluicegate.backends.model_tools.graphs.shapes import BertShape, weight_shapes
from sluicegate.backends.model_tools.graphs.weights import Weights


def seeded_weights(shape: BertShape, *, seed: int) -> Weights:
    """Return random weights with the shapes of `shape`; the same seed gives the same weights."""
    random = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {}
    for name, size in weight_shapes(shape).items():
        noise = random.standard_normal(math.prod(size), dtype=np.float32).reshape(size)
        centre = np.float32(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        weights[name] = centre + np.float32(0.02) * noise
    return weights


def pooled_bert(
    shape: BertShape, weights: Weights, options: GraphOptions | None = None
) -> ModelProto:
    """Return an encoder with the outputs `pooled` (the exact mean) and `tokens`."""
    encoder = build_bert(shape, weights, options or GraphOptions())
    return add_pooling(encoder, "mean", hidden=shape.hidden, exact=True)
