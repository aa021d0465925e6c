"""Builds a library that stands in for NVIDIA's, and writes the devices that it shows."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

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


def build_library(path: Path, source: str) -> None:
    """Write the library that `source`, which is in C, is compiled to. It knows its name."""
    path.write_bytes(_compiled(path.name, source))


@cache
def _compiled(name: str, source: str) -> bytes:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.fail("the fake driver is written in C: install `gcc`")
    command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-x", "c", "-"]
    with NamedTemporaryFile() as written:
        subprocess.run([*command, "-o", written.name], input=source, text=True, check=True)
        return Path(written.name).read_bytes()


class FakeDriver:
    """A driver in a folder. Its devices change, also for processes that run, with `show`."""

    def __init__(self, folder: Path) -> None:
        self.library = folder / "libnvidia-ml.so.1"
        self._devices = folder / "gpus"
        build_library(self.library, _SOURCE.read_text())
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
        mode: int = 0,
    ) -> None:
        """Show these devices from the next call on."""
        lines = [f"init {init}", f"driver {driver}", f"cuda {cuda}", f"mode {mode}"]
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
