"""Runs an encoder graph with ONNX Runtime on the CPU."""

import functools
import logging
import shutil
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from sluicegate.backends.errors import ModelFailed, ModelProblem, OutOfMemory
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel, measure_cost
from sluicegate.backends.executors.graph import GraphSource, check_graph, read_inputs
from sluicegate.backends.executors.packing import save_packed_apart
from sluicegate.backends.executors.padded_batch import PaddedBatch, ones
from sluicegate.backends.executors.prepacked import prepacked_graph
from sluicegate.backends.executors.provider import (
    DeviceOptions,
    open_session,
    runtime_version,
    shrink_arena,
)
from sluicegate.backends.executors.trial_runs import open_cost
from sluicegate.backends.types import FloatArray, OutputKind

_log = logging.getLogger(__name__)
_CPU = DeviceOptions(provider="cpu")
# The batch of a model loaded on demand for which the wide session is opened.
_OFTEN = 16
_MEMORY = ("failed to allocate memory", "out of memory", "bad_alloc", "bad allocation")


class OnnxExecutor(ModelExecutor):
    """Runs batches in two sessions: a narrow session and a wide session.

    The narrow session has one intra-op thread, so each run computes in its caller's thread. Up to
    `worker_threads` runs use the narrow session at the same time, and share its weights. ONNX
    Runtime's `run` is thread-safe and releases the GIL. The wide session runs one batch on
    `worker_threads` threads. Both sessions map the same file of packed weights into memory. If this
    file cannot be cached on disk, there is no wide session.

    If the graph's costs are known, models are loaded on demand. Then the wide session is opened
    only for a model that is used often, because it takes as long to open as the narrow session.
    """

    shares_cores = True

    def __init__(self, source: GraphSource, *, worker_threads: int, wide: bool = True) -> None:
        self._source = source
        self.worker_threads = worker_threads
        self.dimensions, self.joined = source.dimensions, source.joined
        self._session, packed = _open_narrow(source)
        self._wide: Any = None
        self._wide_graph = packed if worker_threads > 1 and wide else None
        self._wide_batches = 0
        self.provider = self._session.get_providers()[0]
        self._inputs = read_inputs(self._session, source.path)
        check_graph(self._session, source)
        # A narrow run computes in its caller's thread, so measure thread time, which other
        # processes do not affect.
        self.cost = open_cost(self, source, time.thread_time)
        self.wide_cost = self._open_wide_cost()
        feeds = self._feeds(ones(1, 1, OutputKind.POOLED))
        weakref.finalize(self, shrink_arena, self._session, feeds).atexit = False

    def _open_wide(self) -> None:
        if self._wide_graph is not None:
            self._wide = open_session(self._wide_graph, _CPU, threads=self.worker_threads)

    def _open_wide_cost(self) -> CostModel | None:
        if self._source.costs is not None:
            return self._source.costs.wide
        self._open_wide()
        if self._wide is None:
            return None
        run = functools.partial(self._run, self._wide)
        return measure_cost(self._source, run, time.perf_counter)

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        return self._run(self._session, batch)

    @override
    def run_wide(self, batch: PaddedBatch) -> FloatArray:
        if self._wide is None:
            self._wide_batches += 1
            if self._wide_batches == _OFTEN:
                self._open_wide()
        return self._run(self._wide or self._session, batch)

    def _run(self, session: Any, batch: PaddedBatch) -> FloatArray:
        try:
            (result,) = session.run([self._source.outputs[batch.output]], self._feeds(batch))
        except Exception as error:  # ONNX Runtime's errors only share the base `Exception`
            raise explain(error) from error
        values: FloatArray = result if result.dtype == np.float32 else result.astype(np.float32)
        return values

    def _feeds(self, batch: PaddedBatch) -> dict[str, Any]:
        given = batch.by_input()
        return {name: given[name].astype(kind, copy=False) for name, kind in self._inputs.items()}


def explain(error: Exception, runtime: str = "ONNX Runtime") -> ModelFailed:
    """Convert an error of a run to `OutOfMemory` or another `ModelFailed`."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(mark in text for mark in _MEMORY):
        return OutOfMemory("the machine is out of memory for this batch")
    return ModelFailed(f"{runtime} failed with `{type(error).__name__}`")


def _open_narrow(source: GraphSource) -> tuple[Any, Path | None]:
    """Open the graph, and return the packed graph; `None` if there is none."""
    packed = _keep_packed(source)
    if packed is not None:
        try:
            return open_session(packed, _CPU), packed
        except ModelProblem as error:
            # A power failure can damage files that were just written.
            shutil.rmtree(packed.parent, ignore_errors=True)
            _log.warning("%s; the next start packs the weights again", error)
    return open_session(source.path, _CPU), None


def _keep_packed(source: GraphSource) -> Path | None:
    """Return the graph with weights packed for this machine; `None` if this cannot be cached."""
    if not source.digest:
        return None
    return prepacked_graph(
        source.path,
        digest=source.digest,
        runtime=runtime_version(),
        save=lambda target: save_packed_apart(source.path, target),
    )
