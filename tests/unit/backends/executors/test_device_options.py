"""What a session and a run are told, by what the settings say."""

from pathlib import Path

import pytest

from sluicegate.backends.errors import (
    BackendError,
    ExecutorDied,
    ModelFailed,
    ModelProblem,
    OutOfMemory,
)
from sluicegate.backends.executors.cuda import RunLimits, explain, run_entries
from sluicegate.backends.executors.engine_profiles import EngineProfile
from sluicegate.backends.executors.opening import device_options, run_limits
from sluicegate.backends.executors.provider import (
    DeviceOptions,
    check_provider,
    open_session,
    provider_options,
    read_input_names,
)
from sluicegate.backends.settings import read_settings
from testing.model_repository import toy_graph

GRAPH = Path("model.onnx")


class Session:
    def __init__(self, *providers: str) -> None:
        self._providers = list(providers)

    def get_providers(self) -> list[str]:
        return self._providers


def test_cuda_is_told_its_memory_its_arena_and_no_less_than_float32() -> None:
    ((name, told),) = provider_options(
        DeviceOptions(device=1, memory_bytes=10**9, arena="kNextPowerOfTwo", attention_kernels=2)
    )

    assert name == "CUDAExecutionProvider"
    assert told["device_id"] == "1"
    assert told["gpu_mem_limit"] == "1000000000"
    assert told["arena_extend_strategy"] == "kNextPowerOfTwo"
    assert told["sdpa_kernel"] == "2"
    assert (told["use_tf32"], told["enable_cuda_graph"]) == ("0", "0")


@pytest.mark.parametrize(("precision", "told"), [("fp32", "0"), ("tf32", "1"), ("fp16", "0")])
def test_products_lose_bits_in_tf32_alone(precision: str, told: str) -> None:
    """TensorRT gives what it does not take to CUDA, which is told the same."""
    for provider in ("cuda", "tensorrt"):
        *_, (_, cuda) = provider_options(DeviceOptions(provider=provider, precision=precision))

        assert cuda["use_tf32"] == told


def test_a_device_without_bounds_is_told_none() -> None:
    ((_, told),) = provider_options(DeviceOptions())

    assert "gpu_mem_limit" not in told
    assert "sdpa_kernel" not in told


def test_tensorrt_stands_before_cuda_and_keeps_its_engines(tmp_path: Path) -> None:
    tensorrt, cuda = provider_options(DeviceOptions(provider="tensorrt", engine_cache=tmp_path))

    assert tensorrt[0] == "TensorrtExecutionProvider"
    assert tensorrt[1]["trt_engine_cache_path"] == str(tmp_path)
    assert cuda[0] == "CUDAExecutionProvider"


def test_tensorrt_is_told_the_shapes_of_its_engine() -> None:
    profile = EngineProfile(rows=64, longest=512, usual=256)
    options = DeviceOptions(provider="tensorrt", profile=profile)

    (_, told), (_, cuda) = provider_options(options, ["input_ids"])

    assert told["trt_profile_max_shapes"] == "input_ids:64x512"
    assert not any("profile" in name for name in cuda)


def test_the_inputs_of_an_engine_are_those_of_its_graph(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(toy_graph())
    names = [node.name for node in open_session(path, DeviceOptions(provider="cpu")).get_inputs()]

    assert read_input_names(path) == names
    path.write_bytes(b"")
    with pytest.raises(ModelProblem, match=r"model\.onnx: ONNX Runtime cannot load"):
        read_input_names(path)


@pytest.mark.parametrize(("precision", "rounded"), [("fp32", "00"), ("fp16", "10"), ("bf16", "01")])
def test_tensorrt_rounds_as_the_revision_says(precision: str, rounded: str) -> None:
    (_, told), _ = provider_options(DeviceOptions(provider="tensorrt", precision=precision))

    assert told["trt_fp16_enable"] + told["trt_bf16_enable"] == rounded


def test_a_session_that_fell_to_the_cpu_is_refused() -> None:
    """ONNX Runtime writes a line to its log and goes on."""
    path = Path("model.onnx")
    fallen = Session("CPUExecutionProvider")

    with pytest.raises(ModelProblem, match="`CPUExecutionProvider`; install the GPU"):
        check_provider(fallen, path, DeviceOptions(provider="cuda"))
    check_provider(Session("CUDAExecutionProvider"), path, DeviceOptions(provider="cuda"))


def test_a_run_names_its_graph_only_where_graphs_are_captured() -> None:
    """-1 is no graph; 0 is never used."""
    graphs, none = DeviceOptions(graphs=True), DeviceOptions()

    assert run_entries(none, graph=0, shrink=False) == {}
    assert run_entries(graphs, graph=0, shrink=False) == {"gpu_graph_id": "-1"}
    assert run_entries(graphs, graph=7, shrink=False) == {"gpu_graph_id": "7"}


def test_shrinking_names_the_arena_of_the_device() -> None:
    name = "memory.enable_memory_arena_shrinkage"

    assert run_entries(DeviceOptions(device=3), graph=0, shrink=True) == {name: "gpu:3"}
    assert run_entries(DeviceOptions(provider="cpu"), graph=0, shrink=True) == {name: "cpu:0"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA failure 700: an illegal memory access was encountered", ExecutorDied),
        *(
            (f"CUDA failure {code}: a fault ; GPU=0 ; hostname=h", ExecutorDied)
            for code in (46, 100, 214, 220, 226, 702, 709, 710, *range(714, 720), 721, 999)
        ),
        ("CUDA failure 1: invalid argument", ModelFailed),
        ("CUDA failure 701: too many resources requested for launch", ModelFailed),
        ("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED", ExecutorDied),
        (
            "BFCArena: Failed to allocate memory for requested buffer of size 1",
            OutOfMemory,
        ),
        ("Available memory of 10 is smaller than requested bytes of 20", OutOfMemory),
        ("CUDA failure 2: out of memory", OutOfMemory),
        ("indices element out of data bounds", ModelFailed),
    ],
)
def test_an_error_of_the_runtime_is_told_by_its_text(text: str, kind: type[BackendError]) -> None:
    assert type(explain(RuntimeError(text))) is kind


def test_the_environment_reaches_the_device() -> None:
    settings = read_settings(
        {
            "SLUICEGATE_BACKEND_PROVIDER": "cuda",
            "SLUICEGATE_BACKEND_DEVICE": "2",
            "SLUICEGATE_BACKEND_GPU_RUNS": "3",
            "SLUICEGATE_BACKEND_GPU_MEMORY_BYTES": "8589934592",
            "SLUICEGATE_BACKEND_GPU_GRAPH_ROWS": "16",
            "SLUICEGATE_BACKEND_GPU_ENGINE_CACHE": "/var/cache/engines",
            "SLUICEGATE_BACKEND_MAX_BATCH_TOKENS": "32768",
        }
    )

    options, limits = device_options(settings), run_limits(settings, GRAPH).within(256)

    assert (options.provider, options.device, options.memory_bytes) == ("cuda", 2, 2**33)
    assert options.engine_cache == Path("/var/cache/engines")
    assert (limits.runs, limits.graph_rows, limits.outsized_tokens) == (3, 16, 65536)
    assert limits.buckets.max_length == 256


def test_no_graph_is_captured_unless_asked_for() -> None:
    assert RunLimits().captured() == []
    assert all(s.rows <= 4 for s in RunLimits(graph_rows=4).captured())
