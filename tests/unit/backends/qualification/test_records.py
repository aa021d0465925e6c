"""What is measured here is kept with the name of the machine, and believed on no other."""

from pathlib import Path

import pytest

from sluicegate.backends.qualification import records
from sluicegate.backends.qualification.records import (
    MachineInfo,
    describe_machine,
    machine_key,
    read_machine,
    read_record,
    write_record,
)


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Describe a GPU as NVIDIA's driver does."""
    folder = tmp_path / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 44\n")
    monkeypatch.setattr(records, "_GPUS", tmp_path / "gpus")
    return "NVIDIA H200"


def test_a_record_names_devices_runtimes_and_the_date(tmp_path: Path, gpu: str) -> None:
    path = tmp_path / "record.json"

    assert write_record(path, machine_key("digest"), MachineInfo())

    found = read_machine(path)
    assert found == describe_machine()
    assert found is not None
    assert found.devices[1:] == [gpu]
    assert any(name.startswith("onnxruntime") for name in found.runtimes)
    assert len(found.date) == len("2026-11-22")


def test_a_record_of_another_gpu_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str
) -> None:
    path = tmp_path / "record.json"
    write_record(path, machine_key("digest"), MachineInfo())

    monkeypatch.setattr(records, "_GPUS", tmp_path / "none")

    assert read_record(path, machine_key("digest"), MachineInfo) is None
