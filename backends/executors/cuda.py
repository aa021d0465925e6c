"""Runs an encoder graph with ONNX Runtime on a GPU, with bound tensors and captured CUDA graphs.

Tests run this code with the CPU provider. For serving on a CPU, `OnnxExecutor` is faster.
"""

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from queue import LifoQueue
from typing import Any, Self

import msgspec
from typing_extensions import override

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.errors import (
    BackendError,
    ExecutorDied,
    ModelFailed,
    ModelProblem,
    OutOfMemory,
)
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.binding import Bindings, BoundKey, BoundTensors, Tensors
from sluicegate.backends.executors.buckets import Buckets, Shape
from sluicegate.backends.executors.cost import measure_cost
from sluicegate.backends.executors.graph import GraphSource, check_graph, read_inputs
from sluicegate.backends.executors.host_memory import host_memory
from sluicegate.backends.executors.padded_batch import PaddedBatch, ones
from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.executors.trial_shapes import device_trials
from sluicegate.backends.types import FloatArray, OutputKind

_BINDING_BYTES = 256 * 1024 * 1024
# ONNX Runtime captures a graph in its second run. The third run proves that the graph can be
# replayed.
_CAPTURE_RUNS = 3
_TRIAL = Shape(1, 4)
# For this many seconds, trial batches are measured when a model is loaded.
_MEASURING = 10.0
# Parts of messages that report a broken device, on which no later run of this process can succeed.
_FATAL = (
    *("cudaErrorIllegalAddress", "cudaErrorLaunchFailure", "device-side assert"),
    *("CUDNN_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_EXECUTION_FAILED"),
)
# Error codes from which a process cannot recover, according to the CUDA runtime's reference. They
# mean that the device is gone or in use by other processes, that its memory or links are faulty, or
# that a kernel has corrupted the context.
_FATAL_CODES = {46, 100, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 999}
_CODE = re.compile(r"CUDA failure (\d+)")
_MEMORY = (
    *("Failed to allocate memory", "out of memory", "CUDA failure 2:", "ALLOC_FAILED"),
    *("Available memory of", "bad_alloc"),
)


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Configures the runs of an executor.

    Up to `runs` batches run at a time. `batch` is the maximum size of a batch, but a single row may
    have more tokens. Batches of up to `graph_rows` rows and `graph_tokens` tokens run as captured
    CUDA graphs (0: none). After a batch of more than `outsized_tokens`, ONNX Runtime's memory arena
    frees its unused memory (0: never).
    """

    runs: int = 2
    batch: BatchBounds = BatchBounds()
    buckets: Buckets = Buckets()
    graph_rows: int = 0
    graph_tokens: int = 2048
    outsized_tokens: int = 0

    def within(self, max_tokens: int | None) -> Self:
        """Return these limits for a model that reads at most `max_tokens` tokens."""
        buckets = msgspec.structs.replace(self.buckets, max_length=max_tokens)
        return msgspec.structs.replace(self, buckets=buckets)

    def captured(self) -> list[Shape]:
        """Return the shapes to capture, the largest first.

        In this order, the graphs of smaller shapes reuse the memory of the largest graph.
        """
        longest = self.buckets.max_length or self.graph_tokens
        return self.buckets.shapes(
            max_rows=self.graph_rows,
            max_length=min(longest, self.graph_tokens),
            max_tokens=self.graph_tokens,
        )


class DeviceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts an executor's runs since it started; `bucket_tokens` includes padding."""

    runs: int = 0
    tokens: int = 0
    bucket_tokens: int = 0
    replays: int = 0
    shrinks: int = 0
    out_of_memory: int = 0
    shapes: int = 0


class CudaExecutor(ModelExecutor):
    """Runs sessions on one device. Without CUDA graphs, all runs share one session.

    Only the session and the thread that captured a CUDA graph can replay it. So with CUDA graphs,
    each concurrent run has its own session and its own thread. Two executors of a device must not
    capture at the same time, so the context manager `capture` is held during a capture.
    """

    def __init__(
        self,
        source: GraphSource,
        *,
        options: DeviceOptions,
        limits: RunLimits | None = None,
        capture: AbstractContextManager[object] | None = None,
    ) -> None:
        limits = (limits or RunLimits()).within(source.max_tokens)
        sessions = limits.runs if limits.graph_rows else 1
        options = msgspec.structs.replace(
            options,
            graphs=limits.graph_rows > 0,
            precision=source.precision,
            # Each session has its own arena.
            memory_bytes=options.memory_bytes // sessions,
        )
        opened = [_open(source.path, options) for _ in range(sessions)]
        self.provider = opened[0].get_providers()[0]
        self.worker_threads = limits.runs
        self.dimensions, self.joined = source.dimensions, source.joined
        self._slots = [
            _RunSlot(opened[number % sessions], source, options, limits)
            for number in range(limits.runs)
        ]
        self._free: LifoQueue[_RunSlot] = LifoQueue()
        with capture or nullcontext():
            for slot in self._slots:
                slot.warm_up()
                self._free.put(slot)
            self.cost = measure_cost(
                source,
                self.run,
                time.perf_counter,
                trials=device_trials(limits.batch, source.max_tokens),
                seconds=_MEASURING,
            )

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        slot = self._free.get()
        try:
            return slot.run(batch)
        finally:
            self._free.put(slot)

    def statistics(self) -> DeviceStatistics:
        """Return the sums over all run slots."""
        found = [slot.statistics() for slot in self._slots]
        names = DeviceStatistics.__struct_fields__
        return DeviceStatistics(**{n: sum(getattr(each, n) for each in found) for n in names})


class _RunSlot:
    """Serves one run at a time; owns its bindings, its run options and, for graphs, a thread."""

    def __init__(
        self, session: Any, source: GraphSource, options: DeviceOptions, limits: RunLimits
    ) -> None:
        self._session = session
        self._source = source
        self._options = options
        self._limits = limits
        self._inputs = read_inputs(session, source.path)
        check_graph(session, source)
        self._host = host_memory(options.memory)
        self._bindings = Bindings(self._bind, max_bytes=_BINDING_BYTES)
        self._graphs: dict[BoundKey, int] = {}
        self._thread = ThreadPoolExecutor(1) if options.graphs else None
        self._run_options: dict[tuple[int, bool], Any] = {}
        self._done: Counter[str] = Counter()

    def run(self, batch: PaddedBatch) -> FloatArray:
        if self._thread is None:
            return self._run(batch)
        return self._thread.submit(self._run, batch).result()

    def warm_up(self) -> None:
        """Capture CUDA graphs, and compute each output once.

        Raises:
            ModelProblem: a run failed.
            OutOfMemory: the device does not have enough memory at present.
            ExecutorDied: a run broke the device.
        """
        for output in self._source.outputs:
            captured = self._captured(output)
            self._graphs |= {(shape, output): n for n, shape in enumerate(captured, start=1)}
            try:
                for shape in captured * _CAPTURE_RUNS:
                    self.run(ones(*shape, output))
                self.run(ones(*_TRIAL, output))
            except (OutOfMemory, ExecutorDied):
                raise
            except BackendError as error:
                raise ModelProblem(f"{self._source.path}: a trial run failed: {error}") from error

    def statistics(self) -> DeviceStatistics:
        return DeviceStatistics(**self._done, shapes=len(self._bindings))

    def _captured(self, output: OutputKind) -> list[Shape]:
        # Capture only the output that most rows need. Graphs for two outputs need twice the memory.
        if not self._options.graphs or output is not self._source.first_output:
            return []
        return self._limits.captured()

    def _run(self, batch: PaddedBatch) -> FloatArray:
        shape = self._limits.buckets.fit(*batch.ids.shape)
        key = (shape, batch.output)
        graph = self._graphs.get(key, 0)
        shrink = not self._graphs and 0 < self._limits.outsized_tokens < shape.tokens
        options = self._options_of_run(graph, shrink=shrink)

        def run(binding: Any) -> None:
            self._session.run_with_iobinding(binding, options)

        try:
            if graph:
                self._bindings.keep(key)
            result = self._bindings.get(key).run(batch, run)
        except Exception as error:  # ONNX Runtime's errors only share the base `Exception`
            failure = explain(error)
            self._done["out_of_memory"] += isinstance(failure, OutOfMemory)
            raise failure from error
        self._done["runs"] += 1
        self._done["tokens"] += int(batch.mask.sum())
        self._done["bucket_tokens"] += shape.tokens
        self._done["replays"] += bool(graph)
        self._done["shrinks"] += shrink
        return result

    def _options_of_run(self, graph: int, *, shrink: bool) -> Any:
        """Return run options that use the captured graph number `graph` (0: none).

        With `shrink`, the memory arena frees its unused memory after the run.
        """
        if (made := self._run_options.get((graph, shrink))) is None:
            # Imported only here, because the library's environment variables must be set first.
            from onnxruntime import RunOptions  # type: ignore[import-untyped] # noqa: PLC0415

            made = self._run_options[graph, shrink] = RunOptions()
            for name, value in run_entries(self._options, graph=graph, shrink=shrink).items():
                made.add_run_config_entry(name, value)
        return made

    def _bind(self, key: BoundKey) -> BoundTensors:
        shape, output = key
        tensors = Tensors(
            session=self._session,
            inputs=self._inputs,
            output=self._source.outputs[output],
            width=self._source.width(output, shape.length),
            joined=self._source.joined,
            memory=self._options.memory,
            device=self._options.device,
            keep_on_device=key in self._graphs,
        )
        return BoundTensors(shape, output, tensors, self._host)


def _open(path: Path, options: DeviceOptions) -> Any:
    """Open a session of a graph.

    Raises:
        ModelProblem: the file is not a valid graph, or would run on another provider.
        OutOfMemory: the device does not have enough memory at present.
        ExecutorDied: the device is broken.
    """
    try:
        return open_session(path, options)
    except ModelProblem as error:
        cause = error.__cause__
        reason = explain(cause if isinstance(cause, Exception) else error)
        if isinstance(reason, OutOfMemory):
            raise OutOfMemory("the device is out of memory for this model") from error
        if isinstance(reason, ExecutorDied):
            raise reason from error
        raise


def explain(error: Exception) -> BackendError:
    """Convert an error of ONNX Runtime to a `BackendError`.

    The class of the result tells whether later batches can succeed.
    """
    text = str(error)
    code = _CODE.search(text)
    if any(mark in text for mark in _FATAL) or (code and int(code[1]) in _FATAL_CODES):
        return ExecutorDied("the device failed; restart the backend")
    if any(mark in text for mark in _MEMORY):
        return OutOfMemory("the device is out of memory for a batch of this size")
    return ModelFailed(f"ONNX Runtime failed with `{type(error).__name__}`")


def run_entries(options: DeviceOptions, *, graph: int, shrink: bool) -> dict[str, str]:
    """Return the configuration entries of a run."""
    entries = {}
    if options.graphs:
        # The graph number -1 disables capture. By default, the number is 0.
        entries["gpu_graph_id"] = str(graph or -1)
    if shrink:
        entries["memory.enable_memory_arena_shrinkage"] = options.arena_name
    return entries
