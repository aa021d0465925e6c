"""Defines, for each kind of model, how to compare its outputs in two precisions."""

import numpy as np

from sluicegate.backends.qualification.gate import Measure
from sluicegate.backends.repository.manifest import (
    ClassifierManifest,
    HeadManifest,
    Manifest,
)
from sluicegate.backends.types import FloatArray
from sluicegate.wire.protocol import Task


def kind_of(manifest: Manifest) -> tuple[Measure, bool]:
    """Return what to compare in a model's outputs, and whether the model reads pairs of texts."""
    if isinstance(manifest, HeadManifest):
        return ("tokens" if manifest.task is Task.ENTITIES else "labels"), False
    if not isinstance(manifest, ClassifierManifest):
        return "vectors", False
    if manifest.per_token:
        is_answer = Task.ANSWER in manifest.tasks
        return ("spans" if is_answer else "tokens"), is_answer
    tasks = set(manifest.tasks)
    ranks = bool({Task.RERANK, Task.CHOOSE} & tasks)
    return ("order" if ranks else "labels"), ranks or Task.ZERO_SHOT in tasks


def rank_scores(logits: FloatArray) -> FloatArray:
    """Return the scores that rank documents.

    If there is only one logit, it is the score. Otherwise, the score is the probability of the last
    label.
    """
    if logits.shape[1] == 1:
        return logits
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: FloatArray = powers[:, -1:] / powers.sum(axis=1, keepdims=True)
    return probabilities
