"""Pools token vectors into one vector per text, for graphs without a pooled output."""

import functools
from collections.abc import Callable

import msgspec
import numpy as np
from typing_extensions import override

from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import FloatArray, IntArray, OutputKind, Pooling


class PoolingExecutor(ModelExecutor):
    """Pools the token vectors of another executor by their mean, first token or maximum."""

    def __init__(self, inner: ModelExecutor, pooling: Pooling) -> None:
        self._inner = inner
        self._pooling = pooling
        self.provider = inner.provider
        self.worker_threads = inner.worker_threads
        self.dimensions, self.joined = inner.dimensions, inner.joined
        self.cost, self.wide_cost = inner.cost, inner.wide_cost
        self.most_rows = inner.most_rows
        self.shares_cores = inner.shares_cores

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        return self._pool(self._inner.run, batch)

    @override
    def run_wide(self, batch: PaddedBatch) -> FloatArray:
        return self._pool(self._inner.run_wide, batch)

    @override
    def run_within(self, time_left: float, batch: PaddedBatch) -> FloatArray:
        return self._pool(functools.partial(self._inner.run_within, time_left), batch)

    def _pool(self, run: Callable[[PaddedBatch], FloatArray], batch: PaddedBatch) -> FloatArray:
        tokens = run(msgspec.structs.replace(batch, output=OutputKind.TOKENS))
        if batch.output is OutputKind.TOKENS:
            return tokens
        return pool(tokens, batch.mask, self._pooling)


def pool(tokens: FloatArray, mask: IntArray, pooling: Pooling) -> FloatArray:
    """Pool token vectors of shape (rows, length, width) to shape (rows, width)."""
    if pooling == "cls":
        return np.ascontiguousarray(tokens[:, 0])
    # Reduce each row without its padding, which would change the rounding of sums.
    reduced = np.empty((len(tokens), tokens.shape[2]), dtype=np.float32)
    for number, length in enumerate(mask.sum(axis=1)):
        real = tokens[number, :length]
        reduced[number] = real.mean(axis=0) if pooling == "mean" else real.max(axis=0)
    return reduced
