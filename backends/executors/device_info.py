"""Reads a GPU's name and memory through the CUDA driver.

The CUDA driver numbers devices as ONNX Runtime does. NVIDIA's management library (NVML) is not
suitable, because its device numbers ignore `CUDA_VISIBLE_DEVICES`, and because it reports the
memory of the whole card for a MIG device.
"""

import ctypes
from typing import Any

import msgspec

from sluicegate.wire.gpus import cuda_library

_NAME_BYTES = 256
# CUDA's numbers of the attributes COMPUTE_CAPABILITY_MAJOR and COMPUTE_CAPABILITY_MINOR.
_MAJOR, _MINOR = 75, 76


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a device; a field that the driver does not report is empty."""

    name: str = ""
    memory_bytes: int = 0
    compute_capability: str = ""


def read_device(number: int) -> DeviceInfo:
    """Return the name and memory of a device, as this machine's driver reports them."""
    try:
        return device_info(cuda_library(), number)
    except AttributeError:  # the library or a function of it is missing
        return DeviceInfo()


def device_info(library: Any, number: int) -> DeviceInfo:
    """Return the name and memory of a device, as `library` reports them.

    `library` is the CUDA driver, loaded with `ctypes`. `number` is the driver's index of the
    device.
    """
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    failed = (
        library.cuInit(0)
        or library.cuDeviceGet(ctypes.byref(device), number)
        or library.cuDeviceGetName(name, _NAME_BYTES, device)
        or library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        or library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    if failed:
        return DeviceInfo()
    return DeviceInfo(
        name=name.value.decode(errors="replace"),
        memory_bytes=memory.value,
        compute_capability=f"{major.value}.{minor.value}",
    )
