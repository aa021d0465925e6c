"""Implements an executor for tests and load tests that computes nearly nothing."""

import time

import numpy as np
from typing_extensions import override

from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import FloatArray, OutputKind

# The number of different outputs of `SimulatedExecutor`.
_TABLE_LINES = 1021


class SimulatedExecutor(ModelExecutor):
    """Sleeps `base` seconds per batch and `token` seconds per padded token.

    Each output is a row of a fixed table. The token ids select the row, so tests notice mixed-up
    rows. The executor computes nearly nothing, so benchmarks measure everything except the model.
    """

    def __init__(self, *, dimensions: int, worker_threads: int, base: float, token: float) -> None:
        self.provider = "PacedExecutionProvider"
        self.worker_threads = worker_threads
        self.dimensions = dimensions
        self.cost = CostModel(base=base, padded=token, square=0.0)
        self._base, self._token = base, token
        generator = np.random.default_rng(0)
        self._table = generator.standard_normal((_TABLE_LINES, dimensions), dtype=np.float32)

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        time.sleep(self._base + self._token * batch.ids.size)
        values = batch.ids + batch.type_ids
        if batch.output is OutputKind.POOLED:
            # This may overflow, but in the same way for any padding.
            values = values @ np.arange(1, values.shape[1] + 1, dtype=values.dtype)
        lines: FloatArray = self._table[values % _TABLE_LINES]
        return lines
