"""Opens ONNX Runtime sessions on the requested execution provider, without fallback."""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.executors.engine_profiles import EngineProfile, load_tensorrt
from sluicegate.backends.executors.prepacked import SAVING
from sluicegate.backends.settings import Arena, Provider, quiet_libraries
from sluicegate.wire.gpus import cuda_library

NAMES: dict[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
# On a CPU, the operator that this optimizer inserts takes six times as long as the replaced
# operators.
_UNWANTED = {"cpu": ["SkipLayerNormFusion"]}
_REMEDIES = {
    "cuda": "install the GPU build of ONNX Runtime and its CUDA libraries",
    "tensorrt": "install the GPU build of ONNX Runtime and the extra `tensorrt`",
}


class DeviceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Configures the execution provider of a session.

    `memory_bytes` is the maximum size of ONNX Runtime's memory arena (0: the whole device).
    `graphs` enables CUDA graphs. `attention_kernels` is ONNX Runtime's `sdpa_kernel` (0: its
    default). The precision `tf32` allows TF32 matrix products. The precisions `fp16` and `bf16`
    allow TensorRT to use these types. TensorRT builds an engine for the shapes of `profile` and
    caches the engine in `engine_cache`.
    """

    provider: Provider = "cuda"
    device: int = 0
    memory_bytes: int = 0
    arena: Arena = "kSameAsRequested"
    graphs: bool = False
    attention_kernels: int = 0
    precision: str = "fp32"
    engine_cache: Path | None = None
    profile: EngineProfile | None = None

    @property
    def memory(self) -> Literal["cpu", "cuda"]:
        """The kind of memory that holds the tensors of a run."""
        return "cpu" if self.provider == "cpu" else "cuda"

    @property
    def arena_name(self) -> str:
        """The arena's name in ONNX Runtime's run options."""
        return "cpu:0" if self.provider == "cpu" else f"gpu:{self.device}"


def provider_options(
    options: DeviceOptions, inputs: Sequence[str] = ()
) -> list[tuple[str, dict[str, str]]]:
    """Return the execution providers to request, in order of preference, with their options.

    `inputs` are the names of the graph's inputs. They are only needed with a `profile`.
    """
    if options.provider == "cpu":
        return [(NAMES["cpu"], {})]
    cuda = {
        "device_id": str(options.device),
        "arena_extend_strategy": options.arena,
        "use_tf32": str(int(options.precision == "tf32")),
        "enable_cuda_graph": str(int(options.graphs)),
        # Copies run in the stream of the kernels, so no kernel reads data before it has arrived.
        "do_copy_in_default_stream": "1",
    }
    if options.memory_bytes:
        cuda["gpu_mem_limit"] = str(options.memory_bytes)
    if options.attention_kernels:
        cuda["sdpa_kernel"] = str(options.attention_kernels)
    wanted = [(NAMES["cuda"], cuda)]
    if options.provider == "tensorrt":
        shapes = options.profile.options(inputs) if options.profile is not None else {}
        wanted.insert(0, (NAMES["tensorrt"], _tensorrt(options) | shapes))
    return wanted


def _tensorrt(options: DeviceOptions) -> dict[str, str]:
    """Return the options of the TensorRT provider."""
    found = {
        "device_id": str(options.device),
        "trt_fp16_enable": str(int(options.precision == "fp16")),
        "trt_bf16_enable": str(int(options.precision == "bf16")),
        "trt_layer_norm_fp32_fallback": "1",
        "trt_cuda_graph_enable": str(int(options.graphs)),
    }
    if options.memory_bytes:
        found["trt_max_workspace_size"] = str(options.memory_bytes)
    if options.engine_cache is not None:
        folder = str(options.engine_cache)
        found |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": folder}
        found |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": folder}
    return found


def _runtime() -> Any:  # ONNX Runtime has no types
    quiet_libraries()
    # Imported here because the environment above must be set first.
    import onnxruntime  # type: ignore[import-untyped] # noqa: PLC0415

    return onnxruntime


@functools.cache
def _register_arena() -> None:
    """Create the arena from which every session on the CPU allocates.

    An arena keeps the memory of its largest batch. If each session had its own arena, a process
    would keep the memory of every session's largest batch. With one arena, the process keeps only
    the memory of the batches that run at the same time.
    """
    onnxruntime = _runtime()
    kind, memory = onnxruntime.OrtAllocatorType, onnxruntime.OrtMemType
    onnxruntime.create_and_register_allocator(
        onnxruntime.OrtMemoryInfo("Cpu", kind.ORT_ARENA_ALLOCATOR, 0, memory.DEFAULT),
        onnxruntime.OrtArenaCfg({"max_mem": 0}),
    )


def shrink_arena(session: Any, feeds: Mapping[str, Any]) -> None:
    """Run a CPU session once more, so that the arena frees its unused memory."""
    options = _runtime().RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with contextlib.suppress(Exception):  # the session may have been closed because it fails
        session.run(None, dict(feeds), options)


def runtime_version() -> str:
    """Return the version of ONNX Runtime."""
    return str(_runtime().__version__)


def save_packed(graph: Path, target: Path) -> None:
    """Write `graph` to `target`, optimized and with weights packed for this CPU.

    Raises:
        OSError: the target cannot be written, or the graph is invalid.
    """
    onnxruntime = _runtime()
    options = _session_options(onnxruntime, DeviceOptions(provider="cpu"), threads=1)
    options.optimized_model_filepath = str(target)
    for entry, value in SAVING.items():
        options.add_session_config_entry(entry, value)
    try:
        onnxruntime.InferenceSession(
            str(graph), options, providers=[NAMES["cpu"]], disabled_optimizers=_UNWANTED["cpu"]
        )
    except Exception as error:  # ONNX Runtime's errors only share the base `Exception`
        raise OSError(first_line(error)) from error


def open_session(path: Path, options: DeviceOptions, *, threads: int = 1) -> Any:
    """Open a graph. Each run uses `threads` CPU threads.

    Raises:
        ModelProblem: the file is not a valid graph, or would run on another provider.
    """
    onnxruntime = _runtime()
    check_build(path, options)
    if options.provider != "cpu":
        # Load these before the first session, because the driver may not be on a library search
        # path, and libraries in wheels never are.
        cuda_library()
        onnxruntime.preload_dlls(directory="")
    if options.provider == "tensorrt":
        load_tensorrt()
    inputs = read_input_names(path) if options.profile is not None else ()
    try:
        session = onnxruntime.InferenceSession(
            str(path),
            _session_options(onnxruntime, options, threads=threads),
            providers=provider_options(options, inputs),
            enable_fallback=False,
            disabled_optimizers=_UNWANTED.get(options.provider, []),
        )
    except Exception as error:  # ONNX Runtime's errors only share the base `Exception`
        raise _unloadable(path, error) from error
    session.disable_fallback()
    check_provider(session, path, options)
    return session


def check_build(path: Path, options: DeviceOptions) -> None:
    """Check that this build of ONNX Runtime has the requested provider.

    Raises:
        ModelProblem: the build does not have the provider.
    """
    if NAMES[options.provider] not in _runtime().get_available_providers():
        raise ModelProblem(_not_there(path, options, "it is not in this build of ONNX Runtime"))


def read_input_names(path: Path) -> list[str]:
    """Return the names of a graph's inputs.

    Raises:
        ModelProblem: the file is not a valid graph.
    """
    onnxruntime = _runtime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[NAMES["cpu"]])
    except Exception as error:  # ONNX Runtime's errors only share the base `Exception`
        raise _unloadable(path, error) from error
    return [node.name for node in session.get_inputs()]


def check_provider(session: Any, path: Path, options: DeviceOptions) -> None:
    """Check that a session runs on the requested provider.

    ONNX Runtime only logs a message if the session runs on another provider.

    Raises:
        ModelProblem: the session runs on another provider.
    """
    running = session.get_providers()[0]
    if running != NAMES[options.provider]:
        raise ModelProblem(_not_there(path, options, f"ONNX Runtime would use `{running}`"))


def _unloadable(path: Path, error: Exception) -> ModelProblem:
    return ModelProblem(f"{path}: ONNX Runtime cannot load the graph: {first_line(error)}")


def _not_there(path: Path, options: DeviceOptions, instead: str) -> str:
    return (
        f"{path}: cannot use the execution provider `{NAMES[options.provider]}`: {instead}; "
        f"{_REMEDIES.get(options.provider, 'reinstall ONNX Runtime')}, or set the provider to "
        "`cpu`"
    )


def _session_options(onnxruntime: Any, options: DeviceOptions, *, threads: int) -> Any:
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = threads
    found.inter_op_num_threads = 1
    found.log_severity_level = 3
    found.add_session_config_entry("session.intra_op.allow_spinning", "0")
    found.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if options.provider == "cpu":
        _register_arena()
        found.add_session_config_entry("session.use_env_allocators", "1")
    if options.provider == "cuda" and options.graphs:
        # A node that runs on the CPU cannot be captured, so refuse a graph with such a node now.
        found.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return found


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().split("\n", 1)[0]
