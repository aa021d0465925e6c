"""Reads memory and use of GPUs by NVIDIA's management library, where the driver brings one."""

import ctypes
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

_LIBRARY: Final = "libnvidia-ml.so.1"
_log = logging.getLogger(__name__)


class GpuUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Gives the memory of a device in bytes, and its busy share of time where it tells.

    `device` is its number in the library, which may differ from that in CUDA.
    """

    device: int
    used_bytes: int
    total_bytes: int
    utilization: float | None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class GpuReader:
    """Reads all devices by `library`; a device that cannot be read is left out."""

    def __init__(self, library: Any) -> None:  # of functions that take pointers
        self._library = library
        self._handles: list[tuple[int, ctypes.c_void_p]] = []
        count = ctypes.c_uint()
        if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for number in range(count.value):
            handle = ctypes.c_void_p()
            found = library.nvmlDeviceGetHandleByIndex_v2(
                ctypes.c_uint(number), ctypes.byref(handle)
            )
            if not found:
                self._handles.append((number, handle))

    def read(self) -> Sequence[GpuUsage]:
        """Return the usage of each device now; takes about a millisecond."""
        return [usage for number, handle in self._handles if (usage := self._usage(number, handle))]

    def _usage(self, number: int, handle: ctypes.c_void_p) -> GpuUsage | None:
        memory, rates = _Memory(), _Utilization()
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        # Devices that are divided do not tell.
        is_known = not self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates))
        return GpuUsage(
            device=number,
            used_bytes=memory.used,
            total_bytes=memory.total,
            utilization=rates.gpu / 100 if is_known else None,
        )


class NoGpuReader(GpuReader):
    """Reads nothing: there is no library."""

    def __init__(self) -> None:
        super().__init__(_NoLibrary())


class _NoLibrary:
    def nvmlInit_v2(self) -> int:  # noqa: N802 - as the library calls it
        return 1


def open_gpus(name: str = _LIBRARY) -> GpuReader:
    """Return what reads the GPUs of this machine."""
    try:
        return GpuReader(ctypes.CDLL(name))
    except (OSError, AttributeError) as error:
        _log.debug("GPUs are not measured", extra={"reason": type(error).__name__})
        return NoGpuReader()
