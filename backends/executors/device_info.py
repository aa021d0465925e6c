"""Reads a GPU's name and memory by the CUDA driver, which numbers devices as sessions do.

NVIDIA's management library numbers them otherwise where `CUDA_VISIBLE_DEVICES` leaves some out, and
gives the memory of a whole card for a slice of it.
"""

import ctypes
from typing import Any

import msgspec

from backends.gpus import cuda_library

_NAME_BYTES = 256
# The driver's numbers of these two attributes.
_MAJOR, _MINOR = 75, 76


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the driver says of a device; the fields are empty where it says nothing."""

    name: str = ""
    memory_bytes: int = 0
    compute_capability: str = ""


def read_device(number: int) -> DeviceInfo:
    """Return what the driver of this machine says of a device."""
    try:
        return device_info(cuda_library(), number)
    except AttributeError:  # there is no library, or it does not have a function
        return DeviceInfo()


def device_info(library: Any, number: int) -> DeviceInfo:
    """Return what `library`, whose functions take pointers, says of a device."""
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
