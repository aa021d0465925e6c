"""Simulates an executor of declared speed: real queues and batches around it, no computation."""

import time

from typing_extensions import override

from backends.executors.cost import CostModel
from backends.executors.dummy import PacedExecutor
from backends.executors.graph import GraphSource


class DeclaredExecutor(PacedExecutor):
    """Sleeps `base` seconds a batch and `token` for each padded token."""

    def __init__(self, *, dimensions: int, worker_threads: int, base: float, token: float) -> None:
        def pace(rows: int, length: int) -> None:
            time.sleep(base + token * rows * length)

        super().__init__(pace, dimensions=dimensions, worker_threads=worker_threads)
        self._declared = CostModel(base=base, padded=token, square=0.0)

    @property
    @override
    def provider(self) -> str:
        return "PacedExecutionProvider"

    @property
    @override
    def cost(self) -> CostModel:
        return self._declared


def paced_executor(
    source: GraphSource, *, worker_threads: int, base: float, token: float
) -> DeclaredExecutor:
    """Return the simulation of the graph of `source`, whose file is not read."""
    return DeclaredExecutor(
        dimensions=source.dimensions, worker_threads=worker_threads, base=base, token=token
    )
