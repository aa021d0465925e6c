"""Builds a library that stands in for NVIDIA's, and writes the devices that it shows."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_SOURCE = Path(__file__).with_name("fake_nvidia_driver.c")
LOST = 15


class FakeGpu(NamedTuple):
    """A card of the fake driver, with MIG devices by UUID and size where it has some."""

    uuid: str
    memory_bytes: int = 80_000_000_000
    capability: tuple[int, int] = (9, 0)
    name: str = "NVIDIA H100 80GB HBM3"
    code: int = 0
    mig: Mapping[str, int] | None = None


class FakeDriver:
    """A driver in a folder. Its devices change, also for processes that run, with `show`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.fail("the fake driver is written in C: install `gcc`")
        self.library = folder / "libnvidia-ml.so.1"
        self._devices = folder / "gpus"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self.library), str(_SOURCE)]
        subprocess.run(command, check=True)
        self.show()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a process finds this driver and no other."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_GPUS": str(self._devices)}

    def show(
        self,
        gpus: Sequence[FakeGpu] = (),
        *,
        init: int = 0,
        driver: str = "580.65.06",
        cuda: int = 13000,
    ) -> None:
        """Show these devices from the next call on."""
        lines = [f"init {init}", f"driver {driver}", f"cuda {cuda}"]
        for gpu in gpus:
            major, minor = gpu.capability
            numbers = f"{gpu.code} {gpu.memory_bytes} {major} {minor} {int(gpu.mig is not None)}"
            lines.append(f"card {gpu.uuid} {numbers} {gpu.name}")
            lines += [
                f"mig {uuid} {gpu.code} {size} {gpu.name} MIG"
                for uuid, size in (gpu.mig or {}).items()
            ]
        written = self._devices.with_suffix(".new")
        written.write_text("\n".join(lines) + "\n")
        written.replace(self._devices)


class FakeGpuLibrary:
    """Has devices of 80 GB of which the second tells nothing of its use, as one of MIG."""

    def __init__(self, devices: int = 2, *, fails: bool = False) -> None:
        self._devices = devices
        self._fails = fails

    def nvmlInit_v2(self) -> int:  # noqa: N802 - as the library calls it
        return 9 if self._fails else 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._devices
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 100
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        found = memory._obj
        found.total, found.used = 80_000_000_000, handle.value * 1_000_000
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        rates._obj.gpu = 37
        return 3 if handle.value > 100 else 0
