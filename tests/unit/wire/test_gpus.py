"""GPUs are found by the driver's library; without a usable one, a sentence says why."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluicegate.wire.gpus import Gpu, visible_gpus
from tests.support.gpu_library import LOST, FakeDriver, FakeGpu, build_library

_PROGRAM = """
import dataclasses, json
from sluicegate.wire.gpus import find_gpus
print(json.dumps(dataclasses.asdict(find_gpus({patience}))))
"""
_CARDS = [FakeGpu(f"GPU-{letter * 8}") for letter in "abcd"]


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


def found(
    environment: dict[str, str], patience: float = 600.0
) -> tuple[list[dict[str, Any]], str, str]:
    """Return what a new process finds that sees `environment` alone."""
    program = _PROGRAM.format(patience=patience)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    answer = json.loads(done.stdout)
    return answer["gpus"], answer["driver"], answer["reason"]


def uuids(environment: dict[str, str]) -> list[str]:
    return [gpu["uuid"] for gpu in found(environment)[0]]


def test_without_a_library_there_is_no_driver() -> None:
    assert found({}) == ([], "", "this machine has no NVIDIA driver")


def test_a_card_is_found_with_its_memory_and_capability(driver: FakeDriver) -> None:
    driver.show(_CARDS[:1])

    gpus, version, reason = found(driver.environment)

    assert gpus == [
        {
            "index": 0,
            "uuid": "GPU-aaaaaaaa",
            "name": "NVIDIA H100 80GB HBM3",
            "memory_bytes": 80_000_000_000,
            "compute_capability": [9, 0],
            "is_mig": False,
            "is_exclusive": False,
        }
    ]
    assert (version, reason) == ("580.65.06", "")


def test_four_cards_are_found_in_the_order_of_the_driver(driver: FakeDriver) -> None:
    driver.show(_CARDS)

    assert uuids(driver.environment) == [card.uuid for card in _CARDS]


def test_a_divided_card_has_its_mig_devices_alone(driver: FakeDriver) -> None:
    divided = FakeGpu("GPU-m", capability=(8, 0), mig={"MIG-1": 10**10, "MIG-2": 2 * 10**10})
    driver.show([_CARDS[0], divided])

    card, *parts = found(driver.environment)[0]

    assert not card["is_mig"]
    assert [(part["uuid"], part["memory_bytes"]) for part in parts] == [
        ("MIG-1", 10**10),
        ("MIG-2", 2 * 10**10),
    ]
    for part in parts:
        assert part["is_mig"]
        assert (part["index"], part["compute_capability"]) == (1, [8, 0])


def test_a_card_for_one_process_is_exclusive(driver: FakeDriver) -> None:
    driver.show(_CARDS[:1], mode=3)

    assert found(driver.environment)[0][0]["is_exclusive"]


def test_a_lost_card_is_left_out(driver: FakeDriver) -> None:
    driver.show([_CARDS[0]._replace(code=LOST), _CARDS[1]])

    assert uuids(driver.environment) == ["GPU-bbbbbbbb"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,2", ["GPU-aaaaaaaa", "GPU-cccccccc"]),
        ("GPU-cc, GPU-aaaaaaaa", ["GPU-cccccccc", "GPU-aaaaaaaa"]),
        ("-1", []),
        ("", []),
        ("0,-1,1", ["GPU-aaaaaaaa"]),
        ("1,,2", ["GPU-bbbbbbbb"]),
        ("2,9,1", ["GPU-cccccccc"]),
        ("GPU-d,GPU-", ["GPU-dddddddd"]),
        ("0,1,0", []),
    ],
)
def test_only_visible_cards_are_found(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    cards = [Gpu(n, card.uuid, "H100", 1, (9, 0), is_mig=False) for n, card in enumerate(_CARDS)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert [gpu.uuid for gpu in visible_gpus(cards)] == expected


def test_the_number_of_a_divided_card_is_its_first_mig_device(driver: FakeDriver) -> None:
    driver.show([_CARDS[0], FakeGpu("GPU-m", mig={"MIG-1": 10**10, "MIG-2": 10**10})])

    assert uuids({**driver.environment, "CUDA_VISIBLE_DEVICES": "1,0"}) == ["MIG-1", "GPU-aaaaaaaa"]
    assert uuids({**driver.environment, "CUDA_VISIBLE_DEVICES": "MIG-2"}) == ["MIG-2"]


def test_a_card_that_is_too_old_is_a_valid_name(driver: FakeDriver) -> None:
    driver.show([_CARDS[0]._replace(capability=(7, 0)), _CARDS[1]])

    assert uuids({**driver.environment, "CUDA_VISIBLE_DEVICES": "0,1"}) == ["GPU-bbbbbbbb"]


def test_a_driver_that_hangs_is_a_reason(driver: FakeDriver) -> None:
    driver.show(_CARDS, init=-1)

    gpus, _, reason = found(driver.environment, patience=0.1)

    assert not gpus
    assert reason.startswith("the NVIDIA driver has not answered for 0.1 s; ")


def test_a_driver_that_hangs_is_not_measured(driver: FakeDriver) -> None:
    driver.show(_CARDS, init=-1)
    program = (
        "from sluicegate.backends.telemetry.nvml import open_gpus;"
        " print(open_gpus(patience=0.1).uuids)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=driver.environment,
        capture_output=True,
        check=True,
        text=True,
    )

    assert done.stdout == "[]\n"
    assert "cannot measure GPUs" in done.stderr


def test_a_driver_that_crashes_is_a_reason(driver: FakeDriver) -> None:
    driver.show(_CARDS, init=-2)

    assert "exited: -6;" in found(driver.environment)[2]


def test_the_library_for_cuda_is_found_off_the_search_path(tmp_path: Path) -> None:
    build_library(tmp_path / "libcuda.so.1", "int cuInit(unsigned flags) { return 41 + flags; }")
    program = f"""
import ctypes
from sluicegate.wire.gpus import load_library
assert load_library("libcuda.so.1", ["", "/no/folder/"]) is None
assert load_library("libcuda.so.1", ["", "/no/folder/", "{tmp_path}/"]).cuInit(1) == 42
print(ctypes.CDLL("libcuda.so.1").cuInit(2), ctypes.CDLL(None).cuInit(3))
"""

    done = subprocess.run(
        [sys.executable, "-c", program], env={}, capture_output=True, check=True, text=True
    )

    assert done.stdout == "43 44\n"


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ({}, "580.65.06 has no device that models can run on; `nvidia-smi -L` lists"),
        ({"init": 9}, "the NVIDIA driver is installed, but not loaded; "),
        ({"init": 18}, "restart the machine"),
        ({"init": 999}, "cannot be used (error 999)"),
        (
            {"driver": "535.104.05", "cuda": 12020},
            "535.104.05 supports CUDA 12.2, but models need CUDA 13.0; install driver 580 or newer",
        ),
        ({"cuda": 0}, "no `libcuda.so.1`; in a container, set `NVIDIA_DRIVER_CAPABILITIES="),
        (
            {"gpus": [FakeGpu("GPU-v", capability=(7, 0), name="Tesla V100")]},
            "`Tesla V100` has compute capability 7.0, but models need 7.5 or more",
        ),
        ({"gpus": [FakeGpu("GPU-m", mig={})]}, "no device that models can run on"),
        ({"gpus": [_CARDS[0]._replace(code=LOST)]}, "no device that models can run on"),
    ],
)
def test_a_sentence_says_why_no_gpu_can_be_used(
    driver: FakeDriver, shown: dict[str, Any], reason: str
) -> None:
    driver.show(**shown)

    gpus, _, told = found(driver.environment)

    assert not gpus
    assert reason in told
    assert "\n" not in told


def test_hidden_cards_are_a_reason(driver: FakeDriver) -> None:
    driver.show(_CARDS)

    reason = found({**driver.environment, "CUDA_VISIBLE_DEVICES": "7"})[2]

    assert reason == "`CUDA_VISIBLE_DEVICES` is `7`, which names no GPU that models can run on"
