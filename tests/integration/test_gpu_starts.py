"""A start that cannot use a GPU ends with one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.gateway.settings import process_environment
from tests.support.gpu_library import FakeDriver, FakeGpu

BACKEND = ("backends", "serve", "--port", "0", "--models", "models")
UP = ("gateway", "up", "--port", "18999", "--admin-port", "18998")


def starting(*arguments: str, environment: dict[str, str]) -> str:
    """Return the output of a start that fails."""
    done = subprocess.run(  # noqa: PLW1510 - it is expected to fail
        [sys.executable, "-P", "-m", *arguments],
        env={**process_environment(), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (1, 2), done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def both_runtimes(tmp_path: Path) -> dict[str, str]:
    """Return variables by which a process finds a second runtime beside the installed one."""
    folder = tmp_path / "onnxruntime_gpu-1.31.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.31.1\n"
    )
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(("command", "provider"), [(BACKEND, "tensorrt"), (UP, "cuda")])
def test_without_a_driver_a_sentence_says_so(
    tmp_path: Path, command: tuple[str, ...], provider: str
) -> None:
    environment = {
        "SLUICEGATE_BACKEND_PROVIDER": provider,
        "LD_LIBRARY_PATH": str(tmp_path),
        "SLUICEGATE_DATA_DIR": str(tmp_path),
    }

    said = starting(*command, environment=environment)

    assert "no NVIDIA driver" in said
    assert "`SLUICEGATE_BACKEND_PROVIDER` to `cpu`" in said
    assert "Traceback" not in said


def test_with_an_old_driver_a_sentence_says_which_is_needed(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    driver.show([FakeGpu("GPU-1")], driver="535.104.05", cuda=12020)

    said = starting(
        *BACKEND, environment={"SLUICEGATE_BACKEND_PROVIDER": "cuda", **driver.environment}
    )

    assert "535.104.05" in said
    assert "driver 580 or newer" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "order", "warns"),
    [
        ({}, "PCI_BUS_ID", False),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "FASTEST_FIRST", True),
        (
            {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"},
            "FASTEST_FIRST",
            True,
        ),
        (
            {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "GPU-2"},
            "FASTEST_FIRST",
            False,
        ),
    ],
)
def test_cuda_numbers_cards_as_the_driver_does(
    tmp_path: Path, given: dict[str, str], order: str, *, warns: bool
) -> None:
    driver = FakeDriver(tmp_path)
    driver.show([FakeGpu("GPU-1"), FakeGpu("GPU-2")])
    program = (
        "import os; from sluicegate.backends.cli import check_runtime; "
        "from sluicegate.backends.settings import BackendSettings; "
        "check_runtime(BackendSettings(provider='cuda')); print(os.environ['CUDA_DEVICE_ORDER'])"
    )

    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**process_environment(), **driver.environment, **given},
        capture_output=True,
        check=True,
        text=True,
    )

    assert done.stdout == f"{order}\n"
    assert ("`CUDA_DEVICE_ORDER`" in done.stderr) == warns


@pytest.mark.parametrize("command", [BACKEND, UP])
def test_both_runtimes_are_refused_in_a_sentence(
    command: tuple[str, ...], both_runtimes: dict[str, str]
) -> None:
    said = starting(*command, environment=both_runtimes)

    assert "both `onnxruntime` and `onnxruntime-gpu` are installed" in said
    assert said.count("\n") == 1
