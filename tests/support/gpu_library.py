"""Stands in for NVIDIA's management library: functions that fill what pointers lead to."""

from typing import Any


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
