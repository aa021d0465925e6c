"""Declares the interface by which the batcher runs a graph."""

from abc import abstractmethod
from typing import Protocol

from backends.executors.cost import CostModel
from backends.executors.padded_batch import PaddedBatch
from backends.types import FloatArray


class ModelExecutor(Protocol):
    """Runs padded batches through one encoder graph, blocking.

    `run` returns float32, `(rows, dimensions)` for pooled and `(rows, length, dimensions)` for
    tokens, in the order of the rows. It raises `ModelFailed` when this batch cannot be computed
    (`OutOfMemory` when a smaller one might be), `UpstreamUnavailable` or `Overloaded` when no batch
    can be now, and `ExecutorDied` when none ever will be again.
    """

    provider: str
    """The execution provider that really runs."""
    worker_threads: int
    """How many threads may be inside `run` at once."""
    dimensions: int
    cost: CostModel
    """Predicts a batch in one of the worker threads."""
    shares_cores: bool = False
    """Whether its runs take the cores that the event loop needs, and not a device of their own."""
    most_rows: int | None = None
    """The most rows of a batch; `None` where memory alone bounds them."""
    wide_cost: CostModel | None = None
    """Predicts a batch in `run_wide`; `None` where that is `run`."""

    def run_wide(self, batch: PaddedBatch) -> FloatArray:
        """Return what `run` does, on all cores: for a batch that is alone."""
        return self.run(batch)

    def run_within(self, time_left: float, batch: PaddedBatch) -> FloatArray:
        """Return what `run` does; executors on another machine raise after `time_left` seconds."""
        return self.run(batch)

    @abstractmethod
    def run(self, batch: PaddedBatch) -> FloatArray:
        """Return the output of one batch."""
