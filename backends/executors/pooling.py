"""Pools token vectors into one vector per text, for graphs that leave this to their users."""

from typing import Literal

import numpy as np
from typing_extensions import override

from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel
from backends.types import FloatArray, IntArray, OutputKind

Pooling = Literal["mean", "cls", "max"]


class PoolingExecutor(ModelExecutor):
    """Pools the token vectors of another executor: their mean, first or maximum."""

    def __init__(self, inner: ModelExecutor, pooling: Pooling) -> None:
        self._inner = inner
        self._pooling = pooling

    @property
    @override
    def provider(self) -> str:
        return self._inner.provider

    @property
    @override
    def worker_threads(self) -> int:
        return self._inner.worker_threads

    @property
    @override
    def dimensions(self) -> int:
        return self._inner.dimensions

    @property
    @override
    def cost(self) -> CostModel:
        return self._inner.cost

    @property
    @override
    def most_rows(self) -> int | None:
        return self._inner.most_rows

    @property
    @override
    def wide_cost(self) -> CostModel | None:
        return self._inner.wide_cost

    @override
    def run(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        run = self._inner.run
        tokens = run(ids=ids, mask=mask, type_ids=type_ids, output=OutputKind.TOKENS)
        return self._pool(tokens, mask, output)

    @override
    def run_wide(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        run = self._inner.run_wide
        tokens = run(ids=ids, mask=mask, type_ids=type_ids, output=OutputKind.TOKENS)
        return self._pool(tokens, mask, output)

    @override
    def run_within(
        self,
        time_left: float,
        *,
        ids: IntArray,
        mask: IntArray,
        type_ids: IntArray,
        output: OutputKind,
    ) -> FloatArray:
        run = self._inner.run_within
        tokens = run(time_left, ids=ids, mask=mask, type_ids=type_ids, output=OutputKind.TOKENS)
        return self._pool(tokens, mask, output)

    def _pool(self, tokens: FloatArray, mask: IntArray, output: OutputKind) -> FloatArray:
        return tokens if output is OutputKind.TOKENS else pool(tokens, mask, self._pooling)


def pool(tokens: FloatArray, mask: IntArray, pooling: Pooling) -> FloatArray:
    """Return `[rows, width]` of `[rows, length, width]`; each row has `mask[row].sum()` tokens."""
    if pooling == "cls":
        return np.ascontiguousarray(tokens[:, 0])
    # Row by row: sums over padding would add its rounding to a row's answer.
    reduced = np.empty((len(tokens), tokens.shape[2]), dtype=np.float32)
    for number, length in enumerate(mask.sum(axis=1)):
        real = tokens[number, :length]
        reduced[number] = real.mean(axis=0) if pooling == "mean" else real.max(axis=0)
    return reduced
