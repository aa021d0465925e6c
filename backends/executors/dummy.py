"""Implements a deterministic executor for tests and load tests, without a model."""

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
from typing_extensions import override

from backends.errors import ModelFailed
from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel
from backends.types import FloatArray, IntArray, OutputKind


class DummyExecutor(ModelExecutor):
    """Answers each row by its own ids alone; a row that holds a `poison` id fails its batch."""

    def __init__(
        self, *, dimensions: int = 8, worker_threads: int = 1, poison: int | None = None
    ) -> None:
        self._dimensions = dimensions
        self._worker_threads = worker_threads
        self._poison = poison
        self._frequencies = np.arange(1, dimensions + 1, dtype=np.float32)
        self._lock = threading.Lock()
        # The latest: a process may run for days.
        self.shapes: deque[tuple[int, int]] = deque(maxlen=4096)

    @property
    @override
    def provider(self) -> str:
        return "DummyExecutionProvider"

    @property
    @override
    def worker_threads(self) -> int:
        return self._worker_threads

    @property
    @override
    def dimensions(self) -> int:
        return self._dimensions

    @property
    @override
    def cost(self) -> CostModel:
        return CostModel()

    @override
    def run(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        with self._lock:
            self.shapes.append((ids.shape[0], ids.shape[1]))
        if self._poison is not None and bool((ids == self._poison).any()):
            raise ModelFailed("the dummy executor was poisoned")
        values = (ids + 0.5 * type_ids + 1.0) * mask
        tokens: FloatArray = np.sin(values[:, :, None] * self._frequencies).astype(np.float32)
        if output is OutputKind.TOKENS:
            return tokens
        # Summed a row at a time and without its padding: no answer may depend on batch-mates.
        return np.stack(
            [row[: int(n)].mean(axis=0) for row, n in zip(tokens, mask.sum(axis=1), strict=True)]
        )


class PacedExecutor(DummyExecutor):
    """Calls `pace(rows, length)` before each batch, which may wait or raise."""

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
    def run(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        self._pace(ids.shape[0], ids.shape[1])
        return super().run(ids=ids, mask=mask, type_ids=type_ids, output=output)
