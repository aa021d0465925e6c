"""Runs an encoder graph with ONNX Runtime, on the provider that was asked for or not at all."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from typing_extensions import override

from backends.errors import ExecutorDied, ModelFailed, ModelProblem, OutOfMemory
from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel, measure_cost
from backends.executors.prepacked import SAVING, prepacked_graph
from backends.settings import quiet_libraries
from backends.types import FloatArray, IntArray, OutputKind

Provider = Literal["cpu", "cuda"]
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_INTEGERS: dict[str, type[np.integer[Any]]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# CUDA reports a broken device in the message only; no later run can succeed in this process.
_FATAL = ("cudaErrorIllegalAddress", "CUDA failure 700", "device-side assert", "CUDA failure 719")

_MEMORY = ("failed to allocate memory", "out of memory", "bad_alloc", "bad allocation")


class GraphSource(msgspec.Struct, frozen=True, kw_only=True):
    """A graph file, the names of its outputs, and the longest row it reads.

    A `digest` of what the file depends on lets its packed weights be kept beside it.
    """

    path: Path
    outputs: dict[OutputKind, str]
    dimensions: int
    max_tokens: int = 512
    digest: str = ""


class OnnxExecutor(ModelExecutor):
    """A narrow session whose runs use one thread each, `lanes` side by side, and a wide one.

    ONNX Runtime's `run` is thread-safe and releases the interpreter's lock, and with one intra-op
    thread it works in the caller's: N callers are N narrow sessions over one copy of the weights.
    The wide session runs one batch on `lanes` threads, over the same mapped weights; where those
    cannot be kept on disk there is none.
    """

    def __init__(
        self,
        source: GraphSource,
        *,
        lanes: int,
        provider: Provider = "cpu",
        device: int = 0,
        wide: bool = True,
    ) -> None:
        self._source = source
        self._lanes = lanes
        runtime = _load_runtime(provider)
        path = source.path
        packed = _keep_packed(runtime, source) if provider == "cpu" else None
        self._session = _open(runtime, packed or path, provider, device)
        self._wide: Any = None
        if packed is not None and lanes > 1 and wide:
            self._wide = _open(runtime, packed, provider, device, threads=lanes)
        self._inputs = _read_inputs(self._session, path)
        _check_outputs(self._session, source)
        self._warm_up()
        # A narrow run works in its caller's thread, whose own time no neighbour disturbs.
        clock = time.thread_time if provider == "cpu" else time.perf_counter
        self._cost = self._measure(self._session, clock)
        self._wide_cost = (
            None if self._wide is None else self._measure(self._wide, time.perf_counter)
        )

    @property
    @override
    def provider(self) -> str:
        name: str = self._session.get_providers()[0]
        return name

    @property
    @override
    def lanes(self) -> int:
        return self._lanes

    @property
    @override
    def dimensions(self) -> int:
        return self._source.dimensions

    @property
    @override
    def cost(self) -> CostModel:
        return self._cost

    @override
    def run(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        return self._run(self._session, (ids, mask, type_ids), output)

    @property
    @override
    def wide_cost(self) -> CostModel | None:
        return self._wide_cost

    @override
    def run_wide(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        return self._run(self._wide or self._session, (ids, mask, type_ids), output)

    def _run(
        self, session: Any, arrays: tuple[IntArray, IntArray, IntArray], output: OutputKind
    ) -> FloatArray:
        given = dict(zip(_INPUTS, arrays, strict=True))
        feeds = {name: given[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
        try:
            (result,) = session.run([self._source.outputs[output]], feeds)
        except Exception as error:  # ONNX Runtime's errors have no common base but this one
            if any(mark in str(error) for mark in _FATAL):
                raise ExecutorDied("the device failed; restart the backend") from error
            if any(mark in str(error).lower() for mark in _MEMORY):
                raise OutOfMemory("there was no memory for the batch") from error
            raise ModelFailed(f"ONNX Runtime failed with `{type(error).__name__}`") from error
        values: FloatArray = result if result.dtype == np.float32 else result.astype(np.float32)
        return values

    def _measure(self, session: Any, clock: Callable[[], float]) -> CostModel:
        output = next(iter(self._source.outputs))

        def run(ids: IntArray, mask: IntArray) -> None:
            self._run(session, (ids, mask, np.zeros_like(ids)), output)

        try:
            return measure_cost(run, clock, longest=self._source.max_tokens)
        except ModelFailed:
            # A graph of fixed shape: a guess will do, what it really takes is learnt at work.
            return CostModel()

    def _warm_up(self) -> None:
        """Run a row once, so that a graph that cannot answer is found before it is served."""
        ids = np.ones((1, 4), dtype=np.int32)
        for output in self._source.outputs:
            try:
                result = self.run(ids=ids, mask=ids, type_ids=ids * 0, output=output)
            except ModelFailed as error:
                raise ModelProblem(f"{self._source.path}: a trial run failed: {error}") from error
            if result.shape[-1] != self.dimensions:
                raise ModelProblem(
                    f"{self._source.path}: output `{self._source.outputs[output]}` is "
                    f"{result.shape[-1]} wide, not `dimensions: {self.dimensions}`"
                )


def _load_runtime(provider: Provider) -> Any:  # ONNX Runtime has no types
    quiet_libraries()
    # Imported here because the environment above must be set first, whoever imports this module.
    import onnxruntime  # type: ignore[import-untyped] # noqa: PLC0415

    if provider == "cuda":
        onnxruntime.preload_dlls(directory="")
    return onnxruntime


def _options(runtime: Any, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def _keep_packed(runtime: Any, source: GraphSource) -> Path | None:
    if not source.digest:
        return None

    def save(target: Path) -> None:
        options = _options(runtime, 1)
        options.optimized_model_filepath = str(target)
        for entry, value in SAVING.items():
            options.add_session_config_entry(entry, value)
        try:
            runtime.InferenceSession(str(source.path), options, providers=[_PROVIDERS["cpu"]])
        except Exception as error:  # ONNX Runtime's errors have no common base but this one
            # A graph that is broken is named when it is opened as it is.
            raise OSError(_first_line(error)) from error

    return prepacked_graph(
        source.path, digest=source.digest, runtime=runtime.__version__, save=save
    )


def _open(runtime: Any, path: Path, provider: Provider, device: int, *, threads: int = 1) -> Any:
    options = _options(runtime, threads)
    wanted: list[Any] = [_PROVIDERS[provider]]
    if provider == "cuda":
        wanted = [(_PROVIDERS[provider], {"device_id": device})]
    try:
        session = runtime.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # ONNX Runtime's errors have no common base but this one
        raise ModelProblem(f"{path}: ONNX Runtime cannot load it: {_first_line(error)}") from error
    session.disable_fallback()
    running = session.get_providers()[0]
    if running != _PROVIDERS[provider]:
        raise ModelProblem(
            f"{path}: `{_PROVIDERS[provider]}` was asked for and `{running}` would run; install "
            "the GPU build of ONNX Runtime and its CUDA libraries, or set the provider to `cpu`"
        )
    return session


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def _read_inputs(session: Any, path: Path) -> dict[str, type[np.integer[Any]]]:
    """Return the graph's inputs and the integers each takes."""
    inputs = {node.name: _INTEGERS.get(node.type) for node in session.get_inputs()}
    for name, kind in inputs.items():
        if name not in _INPUTS or kind is None:
            raise ModelProblem(f"{path}: input `{name}` is none of an encoder's integer inputs")
    return {name: kind for name, kind in inputs.items() if kind is not None}


def _check_outputs(session: Any, source: GraphSource) -> None:
    names = [node.name for node in session.get_outputs()]
    for name in source.outputs.values():
        if name not in names:
            raise ModelProblem(
                f"{source.path}: it has no output `{name}`; it has {', '.join(names)}"
            )
