"""What runs the models of `sluicegate up`, which backends that makes, and their memory."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sluicegate.gateway.settings import Settings
from sluicegate.gateway.supervisor.errors import CannotStart
from sluicegate.gateway.supervisor.machine import (
    PROVIDER,
    Devices,
    available_memory,
    choose_devices,
    processes_for_a_gpu,
)
from sluicegate.gateway.supervisor.spec import ProcessSpec
from sluicegate.gateway.supervisor.topology import backend_specs, first_of_devices
from sluicegate.wire.gpus import Gpu, GpusFound

GPUS = tuple(
    Gpu(
        index=number,
        uuid=f"GPU-{number}",
        name="NVIDIA H100",
        memory_bytes=80 * 10**9,
        compute_capability=(9, 0),
        is_mig=False,
    )
    for number in range(4)
)
FOUR = GpusFound(GPUS, "580.65.06", "")
NONE = GpusFound((), "", "this machine has no NVIDIA driver")

_MACHINE = {"proc/meminfo": "MemTotal:  1000 kB\nMemFree:  10 kB\n"}
_V2 = {
    "proc/self/cgroup": "0::/pods/one\n",
    "proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
_V1 = {
    "proc/self/cgroup": "3:cpu,cpuacct:/a\n2:memory:/pods/one\n",
    "proc/self/mountinfo": "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
}


def chosen(
    found: GpusFound, *runtimes: str, provider: str | None = None, cores: int = 14
) -> Devices:
    environment = {} if provider is None else {PROVIDER: provider}
    return choose_devices(environment, runtimes=runtimes, cores=cores, find=lambda: found)


def specs(devices: Devices, regions: Sequence[str] = ("eu",)) -> list[ProcessSpec]:
    return backend_specs(
        regions,
        models=Path("models"),
        settings=Settings(),
        choose=random.Random(1),
        memory=8000,
        devices=devices,
    )


def test_gpus_run_the_models_where_their_runtime_is_installed() -> None:
    devices = chosen(FOUR, "gpu")

    assert (devices.gpus, devices.provider) == (GPUS, "cuda")
    assert devices.notice == (
        "models run on 4 x NVIDIA H100 (80 GB), NVIDIA driver 580.65.06, with 2 backends on each"
    )


def test_a_line_says_why_models_run_on_the_cpu() -> None:
    assert chosen(NONE, "cpu").notice == (
        "models run on the CPU: this machine has no NVIDIA driver"
    )
    assert "the GPU build of ONNX Runtime is not installed for 4 x" in chosen(FOUR, "cpu").notice
    assert not chosen(FOUR, "cpu").gpus


def test_a_provider_that_is_set_needs_no_line() -> None:
    assert chosen(FOUR, "gpu", provider="cpu") == Devices()
    assert chosen(FOUR, "cpu", provider="openvino") == Devices()
    assert chosen(FOUR, "gpu", provider="tensorrt").provider == "tensorrt"


def test_gpus_that_were_asked_for_and_are_not_there_are_a_problem() -> None:
    with pytest.raises(CannotStart, match=r"no NVIDIA driver\..*`cpu`"):
        chosen(NONE, "gpu")
    with pytest.raises(CannotStart, match="no NVIDIA driver"):
        chosen(NONE, "cpu", provider="cuda")
    with pytest.raises(CannotStart, match=r"is `cuda`.* is not installed"):
        chosen(FOUR, "cpu", provider="cuda")


def test_a_gpu_for_one_process_has_one_backend() -> None:
    exclusive = tuple(replace(gpu, is_exclusive=True) for gpu in GPUS)

    assert chosen(FOUR, "gpu").backends_of_each == 2
    assert chosen(GpusFound(exclusive, "580.65.06", ""), "gpu").backends_of_each == 1


def test_every_gpu_has_backends_that_see_it_alone() -> None:
    found = specs(chosen(FOUR, "gpu"))

    assert [spec.name for spec in found] == [f"backend-eu-{number}" for number in range(8)]
    assert [spec.index for spec in found] == list(range(8))
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in found] == [
        gpu.uuid for gpu in GPUS for _ in range(2)
    ]
    for spec in found:
        assert spec.environment[PROVIDER] == "cuda"
        assert spec.environment["SLUICEGATE_BACKEND_DEVICE"] == "0"
        assert spec.environment["SLUICEGATE_BACKEND_GPU_PROCESSES"] == "2"
        assert spec.memory_bytes == 800


def test_on_the_cpu_a_backend_inherits_its_devices() -> None:
    (spec,) = specs(Devices())

    assert not {PROVIDER, "CUDA_VISIBLE_DEVICES"} & spec.environment.keys()


def test_regions_and_gpus_are_dealt_out_to_each_other() -> None:
    two = [(s.region, s.device) for s in specs(Devices(gpus=GPUS, provider="cuda"), ("eu", "us"))]
    one = specs(Devices(gpus=GPUS[:1], provider="cuda"), ("eu", "us"))

    assert two == [("eu", "GPU-0"), ("us", "GPU-1"), ("eu", "GPU-2"), ("us", "GPU-3")]
    assert [(spec.region, spec.device) for spec in one] == [("eu", "GPU-0"), ("us", "GPU-0")]
    assert {spec.environment["SLUICEGATE_BACKEND_GPU_PROCESSES"] for spec in one} == {"2"}


def test_the_first_backend_of_a_gpu_starts_alone() -> None:
    first, later = first_of_devices(specs(chosen(FOUR, "gpu")))

    assert [spec.device for spec in first] == [gpu.uuid for gpu in GPUS]
    assert [spec.device for spec in later] == [gpu.uuid for gpu in GPUS]
    assert all(spec.ready_within > 600 for spec in first)


def test_backends_on_the_cpu_start_together() -> None:
    found = specs(Devices(), ("eu", "us"))

    assert first_of_devices(found) == (found, [])


@pytest.mark.parametrize(
    ("cores", "gpus", "processes"),
    [
        (1, 1, 1),
        (4, 1, 2),
        (8, 1, 5),
        (16, 1, 6),
        (128, 1, 6),
        (16, 4, 2),
        (4, 8, 1),
        (128, 8, 6),
        (8, 0, 1),
    ],
)
def test_backends_share_the_cores_that_the_gateway_leaves(
    cores: int, gpus: int, processes: int
) -> None:
    assert processes_for_a_gpu(cores, gpus) == processes


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 0),
        (_MACHINE, 1_024_000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/pods/one/memory.max": "max\n"}, 1_024_000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/pods/one/memory.max": "5000\n"}, 5000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/pods/memory.max": "6000\n"}, 6000),
        (_MACHINE | _V2 | {"sys/fs/cgroup/memory.max": "7000\n"}, 7000),
        (_MACHINE | _V1 | {"sys/fs/cgroup/memory/pods/memory.limit_in_bytes": "8000\n"}, 8000),
        (_MACHINE | _V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63}\n"}, 1_024_000),
    ],
    ids=["unknown", "machine", "no limit", "own", "parent", "container", "version 1", "none in 1"],
)
def test_the_smallest_limit_counts(tmp_path: Path, files: dict[str, str], found: int) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    assert available_memory(tmp_path) == found
