"""Tries device graphs, in this process or in a child process.

A device graph is a copy of a graph that is optimized for one kind of device. On a GPU, a kernel
that reads an illegal address makes the device unusable for the process. So trials on a GPU run in a
child process.
"""

import gc
import logging
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Self

import msgspec
import numpy as np

from sluicegate.backends.errors import (
    BackendError,
    ExecutorDied,
    ModelFailed,
    OutOfMemory,
    StartProblem,
)
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.opening import OpenExecutor, executor_opener
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.settings import BackendSettings, Provider
from sluicegate.backends.types import FloatArray, IntArray
from sluicegate.wire.gpus import GPU_PROVIDERS

# Seconds for one graph. TensorRT takes minutes to build an engine, and CUDA may have to compile its
# kernels for a newer GPU.
_PATIENCE: Mapping[Provider, float] = MappingProxyType({"cuda": 300.0, "tensorrt": 1800.0})
# Seconds within which a child process must end after its pipe was closed.
_ENDING = 10.0
# The kernel sends these signals if memory is short, and operators send them, too. So they do not
# show that a graph is bad.
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)


class GraphTrial(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the outputs of a graph for trial batches, and the graph's cost model."""

    outputs: list[FloatArray]
    cost: CostModel


TryGraph = Callable[[GraphSource, Sequence[PaddedBatch]], GraphTrial]
"""Runs batches through a graph; raises `BackendError` or `StartProblem` if the graph cannot run."""


def local_trials(open_executor: OpenExecutor) -> TryGraph:
    """Return a function that tries graphs in this process."""

    def try_graph(source: GraphSource, batches: Sequence[PaddedBatch]) -> GraphTrial:
        executor = open_executor(source)
        outputs = [executor.run(batch) for batch in batches]
        return GraphTrial(outputs=outputs, cost=executor.cost)

    return try_graph


def run_on_cpu(source: GraphSource, batches: Sequence[PaddedBatch]) -> list[FloatArray] | None:
    """Return the correct outputs of a graph; `None` if the CPU lacks kernels for it.

    The CPU is the reference, because another device may run a graph for CPUs incorrectly.
    """
    reference = msgspec.structs.replace(source, digest="", precision="fp32")
    on_cpu = local_trials(lambda each: OnnxExecutor(each, worker_threads=1, wide=False))
    try:
        return on_cpu(reference, batches).outputs
    except (BackendError, StartProblem):
        return None


def largest_difference(
    expected: Sequence[FloatArray], found: Sequence[FloatArray], batches: Sequence[PaddedBatch]
) -> float:
    """Return the largest difference between outputs, relative to the largest expected value.

    The result is infinite if an output contains NaN or does not have the expected shape.
    """
    return max(
        _difference(right, other, batch.mask)
        for right, other, batch in zip(expected, found, batches, strict=True)
    )


def _difference(expected: FloatArray, found: FloatArray, mask: IntArray) -> float:
    if expected.shape != found.shape:
        return np.inf
    if expected.ndim > mask.ndim:
        expected, found = expected[mask > 0], found[mask > 0]
    largest = float(np.abs(expected).max()) or 1.0
    moved = float(np.abs(expected - found).max()) / largest
    return moved if np.isfinite(moved) else np.inf


class ChildTrials:
    """Tries graphs in a child process, which starts with the first trial.

    A child process that ends is replaced at the next trial. `make_opener` runs in the child, so it
    must be picklable. A graph that takes more than `patience` seconds fails.
    """

    def __init__(self, make_opener: Callable[[], OpenExecutor], *, patience: float) -> None:
        self._make_opener = make_opener
        self.patience = patience
        self._child: tuple[multiprocessing.process.BaseProcess, Connection] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def __call__(self, source: GraphSource, batches: Sequence[PaddedBatch]) -> GraphTrial:
        """Try a graph as `TryGraph` does; also raises `OutOfMemory` if the child was killed."""
        process, connection = self._start()
        try:
            connection.send((source, batches))
            answer = connection.recv() if connection.poll(self.patience) else None
        except (EOFError, OSError):
            process.join(_ENDING)
            self._end()
            if process.exitcode in _KILLED:
                raise OutOfMemory(
                    "the process that tried the graph was killed; memory may be short"
                ) from None
            raise ModelFailed("the process that tried the graph ended") from None
        if answer is None:
            self._end()
            raise ModelFailed(f"the graph did not answer within {self.patience:g} s")
        if isinstance(answer, GraphTrial):
            return answer
        if isinstance(answer, ExecutorDied):
            self._end()
        raise answer

    def _start(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        if self._child is None:
            # CUDA does not work in a forked process.
            context = multiprocessing.get_context("spawn")
            connection, other = context.Pipe()
            process = context.Process(target=_serve, args=(other, self._make_opener), daemon=True)
            process.start()
            other.close()
            self._child = process, connection
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            process, connection = self._child
            self._child = None
            connection.close()
            process.kill()
            process.join()


def graph_trials(
    settings: BackendSettings,
) -> Callable[[], AbstractContextManager[TryGraph | None]]:
    """Return a function that opens a context in which graphs are tried.

    On a GPU, the trials run in a child process. For other devices, the context's value is `None`.
    """
    if settings.provider not in GPU_PROVIDERS:
        return nullcontext
    opener = partial(executor_opener, settings)
    return partial(ChildTrials, opener, patience=_PATIENCE[settings.provider])


def _serve(connection: Connection, make_opener: Callable[[], OpenExecutor]) -> None:
    """Try the graphs that the parent process sends, until the parent closes the pipe."""
    # Nothing is logged here, because the parent logs the results.
    logging.getLogger().addHandler(logging.NullHandler())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try_graph = local_trials(make_opener())
    while True:
        try:
            source, batches = connection.recv()
        except EOFError:
            return
        answer: GraphTrial | Exception
        try:
            answer = try_graph(source, batches)
        except (BackendError, StartProblem) as error:
            # The cause may be a library's error that cannot be pickled.
            answer = error.with_traceback(None)
            answer.__cause__ = answer.__context__ = None
            # Errors keep sessions alive, and sessions keep memory of the device.
            gc.collect()
        connection.send(answer)
