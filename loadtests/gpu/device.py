"""Identifies the GPU and samples its utilization, as backends do."""

import threading
from functools import cache
from typing import Self

import msgspec

from backends.gpus import find_gpus
from backends.telemetry.nvml import GpuReader, open_gpus

_INTERVAL = 0.1


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device as its driver names it, empty without one."""

    name: str = ""
    memory_mib: int = 0
    driver: str = ""


def this_device() -> Device:
    """Return the first device."""
    found = find_gpus()
    if not found.gpus:
        return Device(driver=found.driver)
    gpu = found.gpus[0]
    return Device(name=gpu.name, memory_mib=gpu.memory_bytes >> 20, driver=found.driver)


class UtilizationSampler:
    """Samples, while it is entered, the share of time in which a kernel ran on the device."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(_reader(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    @property
    def share(self) -> float | None:
        """The mean of the samples; `None` where nothing can be read."""
        return round(sum(self._samples) / len(self._samples), 3) if self._samples else None

    def _sample(self, reader: GpuReader) -> None:
        while not self._left.wait(_INTERVAL):
            values = [state.utilization for state in reader.read()[:1]]
            self._samples += [value for value in values if value is not None]


@cache
def _reader() -> GpuReader:
    return open_gpus()
