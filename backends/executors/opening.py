"""Opens graphs with the executor that the settings select."""

import gc
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from sluicegate.backends.device_defaults import batch_bounds, batch_tokens, graph_rows
from sluicegate.backends.errors import ModelProblem, OutOfMemory
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.buckets import Buckets
from sluicegate.backends.executors.cuda import CudaExecutor, RunLimits
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.openvino import OpenVinoExecutor
from sluicegate.backends.executors.provider import DeviceOptions
from sluicegate.backends.executors.simulated import SimulatedExecutor
from sluicegate.backends.executors.tensorrt import open_engines
from sluicegate.backends.executors.upstream import UpstreamExecutor
from sluicegate.backends.open_inference.address import servers
from sluicegate.backends.settings import BackendSettings, process_environment

_log = logging.getLogger(__name__)
OpenExecutor = Callable[[GraphSource], ModelExecutor]


def executor_opener(settings: BackendSettings) -> OpenExecutor:
    """Return a function that opens graphs, and that captures only one CUDA graph at a time."""
    capture = threading.Lock()
    others = servers(settings)

    def open_executor(source: GraphSource) -> ModelExecutor:
        if source.upstream is not None:
            token = others.token_for(source.upstream)
            return UpstreamExecutor(source, source.upstream, token=token)
        if settings.provider == "paced":
            return SimulatedExecutor(
                dimensions=source.dimensions,
                worker_threads=settings.worker_threads,
                base=settings.paced_base,
                token=settings.paced_token,
            )
        # With the provider `open_inference`, this process opens a graph only to compare outputs.
        if settings.provider in ("cpu", "openvino", "open_inference"):
            return _open_on_cpu(source, settings)
        return _open_on_gpu(source, settings, capture)

    return open_executor


def open_capturing(
    open_executor: Callable[[RunLimits], ModelExecutor], limits: RunLimits, *, is_asked_for: bool
) -> ModelExecutor:
    """Open a model's graph so that its batches run as captured CUDA graphs.

    If the capture fails, open the graph again without CUDA graphs. But if an operator requested
    CUDA graphs (`is_asked_for`), raise the error.

    Raises:
        ModelProblem: the graph cannot be opened.
        OutOfMemory: the device does not have enough memory at present.
    """
    try:
        return open_executor(limits)
    except (ModelProblem, OutOfMemory) as error:
        if is_asked_for or not limits.graph_rows:
            raise
        _log.warning("cannot capture a CUDA graph; running without it", extra={"why": str(error)})
    # Free the sessions that the error refers to, because they hold memory of the device.
    gc.collect()
    return open_executor(msgspec.structs.replace(limits, graph_rows=0))


def _open_on_gpu(
    source: GraphSource, settings: BackendSettings, capture: AbstractContextManager[object]
) -> ModelExecutor:
    options, limits = device_options(settings), run_limits(settings, source.path)

    def open_on_device(
        source: GraphSource, options: DeviceOptions, limits: RunLimits
    ) -> ModelExecutor:
        return CudaExecutor(source, options=options, limits=limits, capture=capture)

    if settings.provider == "tensorrt":
        if not settings.gpu_tf32:
            # TensorRT has no other way to disable TF32.
            process_environment().setdefault("NVIDIA_TF32_OVERRIDE", "0")
        return open_engines(source, options, limits, open_on_device)
    return open_capturing(
        lambda limits: open_on_device(source, options, limits),
        limits,
        is_asked_for=settings.gpu_graph_rows is not None,
    )


def _open_on_cpu(source: GraphSource, settings: BackendSettings) -> ModelExecutor:
    if settings.provider == "openvino":
        return OpenVinoExecutor(source, worker_threads=settings.worker_threads)
    if settings.provider == "cpu" and source.precision == "bf16":
        raise ModelProblem(
            f"{source.path}: ONNX Runtime cannot run `profile: bf16` on a CPU; set "
            "`SLUICEGATE_BACKEND_PROVIDER` to `openvino`, or select a revision in fp32 in "
            "`serving.yaml`"
        )
    return OnnxExecutor(
        source, worker_threads=settings.worker_threads, wide=settings.wide != "never"
    )


def device_options(settings: BackendSettings) -> DeviceOptions:
    """Return the options of a session on a GPU."""
    return DeviceOptions(
        provider=settings.provider,
        device=settings.device,
        memory_bytes=settings.gpu_memory_bytes or 0,
        arena=settings.gpu_arena,
        attention_kernels=settings.gpu_attention_kernels or 0,
        # The folder is hidden, so that it is not taken for a model.
        engine_cache=settings.gpu_engine_cache or settings.models / ".engines",
    )


def run_limits(settings: BackendSettings, graph: Path) -> RunLimits:
    """Return the limits of a graph's runs on a GPU."""
    return RunLimits(
        runs=settings.gpu_runs,
        batch=batch_bounds(settings),
        buckets=Buckets(
            length_multiple=settings.gpu_length_multiple,
            length_steps=settings.gpu_bucket_steps,
            row_steps=settings.gpu_bucket_steps,
        ),
        graph_rows=graph_rows(settings, graph),
        graph_tokens=settings.gpu_graph_tokens,
        # Twice the bound, because rounding to a bucket may exceed the bound itself.
        outsized_tokens=2 * batch_tokens(settings),
    )
