"""What the CUDA driver says of a device; here a library in its place does."""

import ctypes
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.backends.executors.device_info import DeviceInfo, device_info, read_device


class Driver:
    """Knows one device, number 1; the function `broken` fails."""

    def __init__(self, broken: str = "") -> None:
        self._broken = broken

    @override
    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == self._broken:
            return lambda *_: 999
        return object.__getattribute__(self, name)

    def cuInit(self, _: int) -> int:  # noqa: N802 - as the library calls it
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = 41
        return 0 if number == 1 else 101

    def cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> int:  # noqa: N802
        assert (size, device.value) == (256, 41)
        name.value = b"NVIDIA H100"
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, _: ctypes.c_int) -> int:  # noqa: N802
        memory._obj.value = 80 * 1024**3
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, _: ctypes.c_int) -> int:  # noqa: N802
        value._obj.value = {75: 9, 76: 0}[number]
        return 0


def test_a_device_has_a_name_and_memory() -> None:
    assert device_info(Driver(), 1) == DeviceInfo(
        name="NVIDIA H100", memory_bytes=80 * 1024**3, compute_capability="9.0"
    )


@pytest.mark.parametrize(
    "broken",
    ["cuInit", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute"],
)
def test_a_driver_that_fails_says_nothing(broken: str) -> None:
    assert device_info(Driver(broken), 1) == DeviceInfo()


def test_a_device_that_is_not_there_has_nothing() -> None:
    assert device_info(Driver(), 2) == DeviceInfo()
    assert read_device(10_000) == DeviceInfo()
