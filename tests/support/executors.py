"""Implements deterministic executors without a model."""

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
from typing_extensions import override

from sluicegate.backends.errors import ModelFailed
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import FloatArray, OutputKind


class DummyExecutor(ModelExecutor):
    """Computes each row from its token ids; a batch with the token id `poison` fails."""

    def __init__(
        self, *, dimensions: int = 8, worker_threads: int = 1, poison: int | None = None
    ) -> None:
        self.provider = "DummyExecutionProvider"
        self.worker_threads = worker_threads
        self.dimensions = dimensions
        self.cost = CostModel()
        self._poison = poison
        self._frequencies = np.arange(1, dimensions + 1, dtype=np.float32)
        self._lock = threading.Lock()
        # Bounded, because a process may run for days.
        self.shapes: deque[tuple[int, int]] = deque(maxlen=4096)

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        ids, mask = batch.ids, batch.mask
        with self._lock:
            self.shapes.append((ids.shape[0], ids.shape[1]))
        if self._poison is not None and bool((ids == self._poison).any()):
            raise ModelFailed("the dummy executor was poisoned")
        values = (ids + 0.5 * batch.type_ids + 1.0) * mask
        tokens: FloatArray = np.sin(values[:, :, None] * self._frequencies).astype(np.float32)
        if batch.output is OutputKind.TOKENS:
            return tokens
        # Reduce each row without its padding, so that no row depends on other rows of its batch.
        return np.stack(
            [row[: int(n)].mean(axis=0) for row, n in zip(tokens, mask.sum(axis=1), strict=True)]
        )


class PacedExecutor(DummyExecutor):
    """Calls `pace(rows, length)` before each batch, to delay the batch or to raise an error."""

    def __init__(
        self,
        pace: Callable[[int, int], None],
        *,
        dimensions: int = 8,
        worker_threads: int = 1,
        poison: int | None = None,
    ) -> None:
        super().__init__(dimensions=dimensions, worker_threads=worker_threads, poison=poison)
        self._pace = pace

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        self._pace(*batch.ids.shape)
        return super().run(batch)
