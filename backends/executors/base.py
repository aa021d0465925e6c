"""Declares the interface by which the batcher runs a graph."""

from typing import Protocol

from backends.executors.cost import CostModel
from backends.types import FloatArray, IntArray, OutputKind


class ModelExecutor(Protocol):
    """Runs padded batches through one encoder graph, blocking; `worker_threads` runs at a time.

    A batch is right-padded: row `i` holds `mask[i].sum()` tokens, then zeros. `run` returns
    float32, `(rows, width)` for pooled and `(rows, length, width)` for tokens, in the order of the
    rows. It raises `ModelFailed` when this batch cannot be computed (`OutOfMemory` when a smaller
    one might be), `UpstreamUnavailable` or `Overloaded` when no batch can be now, and
    `ExecutorDied` when none ever will be again.
    """

    @property
    def provider(self) -> str:
        """The execution provider that really runs."""
        ...

    @property
    def worker_threads(self) -> int:
        """How many threads may be inside `run` at once."""
        ...

    @property
    def dimensions(self) -> int:
        """The width of both outputs."""
        ...

    @property
    def cost(self) -> CostModel:
        """What a batch takes in one of the worker threads."""
        ...

    @property
    def most_rows(self) -> int | None:
        """The most rows of a batch; `None` where memory alone bounds them."""
        return None

    @property
    def wide_cost(self) -> CostModel | None:
        """What a batch takes in `run_wide`; `None` where that is `run`."""
        return None

    def run_wide(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        """Return what `run` does, on all cores: for a batch that is alone."""
        return self.run(ids=ids, mask=mask, type_ids=type_ids, output=output)

    def run_within(
        self,
        time_left: float,
        *,
        ids: IntArray,
        mask: IntArray,
        type_ids: IntArray,
        output: OutputKind,
    ) -> FloatArray:
        """Return what `run` does; who waits for another machine gives up after `time_left`."""
        return self.run(ids=ids, mask=mask, type_ids=type_ids, output=output)

    def run(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        """Return the output of one batch."""
        ...
