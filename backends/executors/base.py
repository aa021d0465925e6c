"""Declares the interface of executors, which run the graph of a model for the batcher."""

from abc import abstractmethod
from typing import Protocol

from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import FloatArray, JoinedWidth


class ModelExecutor(Protocol):
    """Runs padded batches through one encoder graph; blocks the calling thread.

    A batch has the int32 arrays `ids`, `mask` and `type_ids` of shape `(rows, length)`, and the
    `output` to compute. `run` returns a float32 array in the order of the rows. Its shape is
    `(rows, dimensions)` for pooled output, `(rows, length, dimensions)` for token output, and
    `(rows, joined.of(length))` for joined output. `run` raises:

    - `ModelFailed` if this batch cannot be computed, and `OutOfMemory` if a smaller batch may fit;
    - `UpstreamUnavailable` or `Overloaded` if no batch can be computed at present;
    - `ExecutorDied` if no batch can ever be computed again.

    An executor is constructed with a `GraphSource`, whose `path` may have any suffix. It

    1. loads the graph, and raises `ModelProblem` if it cannot, or if the graph lacks an output in
       `source.outputs` or the input of `source.has_adapters`, or has another width than
       `source.dimensions`. For a session of ONNX Runtime, `read_inputs` and `check_graph` check
       this;
    2. sets the attributes below, except `cost`;
    3. sets `cost` to `open_cost(self, source, clock)`, which runs and measures trial batches.
    """

    provider: str
    """The execution provider in use."""
    worker_threads: int
    """The maximum number of concurrent calls of `run`."""
    dimensions: int
    cost: CostModel
    """Predicts the time of `run` in one worker thread."""
    shares_cores: bool = False
    """Whether runs use the same processor cores as the event loop."""
    joined: JoinedWidth = JoinedWidth()
    most_rows: int | None = None
    """The maximum rows of a batch; `None` if only memory limits them."""
    wide_cost: CostModel | None = None
    """Predicts the time of `run_wide`; `None` if `run_wide` does the same as `run`."""

    def run_wide(self, batch: PaddedBatch) -> FloatArray:
        """Run one batch on all cores. The caller must not run another batch during this time."""
        return self.run(batch)

    def run_within(self, time_left: float, batch: PaddedBatch) -> FloatArray:
        """Run one batch. An executor that calls another server gives up after `time_left` s."""
        return self.run(batch)

    @abstractmethod
    def run(self, batch: PaddedBatch) -> FloatArray:
        """Return the output of one batch."""
