"""A backend divides the memory of its GPU by the encoders that it serves."""

from pathlib import Path

import pytest

from sluicegate.backends.app import at_device
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.executors.device_info import DeviceInfo
from sluicegate.backends.executors.opening import device_options, run_limits
from sluicegate.backends.settings import BackendSettings, read_settings
from tests.parity.checkpoints import Checkpoint
from tests.parity.served import write_models

GIB = 1024**3
CHECKPOINTS = [
    Checkpoint(family="bert", purpose="many"),
    Checkpoint(family="distilbert", purpose="text"),
]


def card(number: int) -> DeviceInfo:
    return DeviceInfo(name="NVIDIA L4", memory_bytes=20 * GIB) if number == 1 else DeviceInfo()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of two encoders."""
    return write_models(tmp_path_factory.mktemp("models"), CHECKPOINTS)


def test_the_environment_alone_makes_a_backend_of_a_gpu(models: Path) -> None:
    settings = at_device(
        read_settings(
            {
                "SLUICEGATE_BACKEND_MODELS": str(models),
                "SLUICEGATE_BACKEND_PROVIDER": "cuda",
                "SLUICEGATE_BACKEND_DEVICE": "1",
                "SLUICEGATE_BACKEND_GPU_PROCESSES": "2",
            }
        ),
        card,
    )

    limits = run_limits(settings, Path("model.cuda-heads.onnx"))
    assert device_options(settings).memory_bytes == 3 * GIB
    assert (limits.batch.rows, limits.batch.tokens) == (256, 16_384)
    assert (limits.graph_rows, limits.outsized_tokens) == (4, 32_768)


@pytest.mark.parametrize(("serves", "memory"), [("bert-*", 9), ("*", 6), ("-", 18)])
def test_only_encoders_that_are_served_share(models: Path, serves: str, memory: int) -> None:
    settings = BackendSettings(models=models, serves=serves, provider="cuda", device=1)

    assert at_device(settings, card).gpu_memory_bytes == memory * GIB


def test_a_device_that_tells_nothing_leaves_memory_unbounded(models: Path) -> None:
    settings = BackendSettings(models=models, provider="tensorrt")

    assert at_device(settings, card) == settings


def test_a_cpu_has_no_such_defaults() -> None:
    settings = BackendSettings(models=Path("nowhere"))

    assert at_device(settings, card) is settings


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = BackendSettings(models=tmp_path / "nowhere", provider="cuda")

    with pytest.raises(StartProblem, match=r"the models directory `.*nowhere` does not exist"):
        at_device(settings, card)
