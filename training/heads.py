"""Writes and applies head files, which hold the layers `w0`, `b0`, `w1`, ... in float32."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

Layer = tuple[NDArray[np.floating], NDArray[np.floating]]


def save_head(path: Path, layers: Sequence[Layer]) -> None:
    """Write `layers` to `path`, from the first layer to the last."""
    arrays: dict[str, NDArray[np.float32]] = {}
    for index, (weight, bias) in enumerate(layers):
        arrays[f"w{index}"] = np.ascontiguousarray(weight, dtype=np.float32)
        arrays[f"b{index}"] = np.ascontiguousarray(bias, dtype=np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, allow_pickle=False, **arrays)


def apply_head(path: Path, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logits of the head at `path`, with `relu` between its layers."""
    with np.load(path, allow_pickle=False) as head:
        depth = len(head.files) // 2
        for index in range(depth):
            inputs = inputs @ head[f"w{index}"] + head[f"b{index}"]
            if index < depth - 1:
                inputs = np.maximum(inputs, 0)
    return inputs


def layer_of(model: LogisticRegression) -> Layer:
    """Return a logistic regression as a layer, with one column for each class."""
    weight, bias = model.coef_.T, model.intercept_
    if weight.shape[1] == 1:  # with two classes, the model has only the column of the second class
        weight = np.concatenate([-weight, weight], axis=1) / 2
        bias = np.concatenate([-bias, bias]) / 2
    return weight, bias
