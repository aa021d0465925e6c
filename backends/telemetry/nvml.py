"""Reads the state of GPUs with NVML, NVIDIA's management library."""

import ctypes
import logging
from collections.abc import Sequence
from typing import Any, Final

from sluicegate.wire.gpus import (
    PATIENCE,
    Gpu,
    Memory,
    driver_library,
    find_gpus,
    open_devices,
    visible_gpus,
)
from sluicegate.wire.protocol import GpuState

_log = logging.getLogger(__name__)
_CORRECTED, _UNCORRECTED = ctypes.c_int(0), ctypes.c_int(1)
_SINCE_THE_DRIVER_WAS_LOADED: Final = ctypes.c_int(0)
_NO_FUNCTION: Final = 13
THROTTLING: Final = {"power": 0x04 | 0x80, "heat": 0x20 | 0x40, "hardware": 0x08}
"""For each reason for reduced clocks, the bits that NVML reports; idle devices do not count."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class GpuReader:
    """Reads the GPUs that this process can see; leaves out devices that fail.

    `library` is NVML, loaded with `ctypes`.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._devices: dict[str, tuple[Gpu, ctypes.c_void_p]] = {}
        if library.nvmlInit_v2():
            return
        devices = {gpu.uuid: (gpu, handle) for gpu, handle in open_devices(library)}
        seen = visible_gpus([gpu for gpu, _ in devices.values()])
        self._devices = {gpu.uuid: devices[gpu.uuid] for gpu in seen}

    @property
    def uuids(self) -> Sequence[str]:
        """The UUIDs of the devices, in CUDA's order."""
        return list(self._devices)

    def read(self) -> Sequence[GpuState]:
        """Return the present state of each device. Takes about a millisecond."""
        found = map(self.read_device, self._devices)
        return [state for state in found if isinstance(state, GpuState)]

    def read_device(self, uuid: str) -> GpuState | int:
        """Return the state of the GPU with this UUID, or NVML's error number."""
        gpu, handle = self._devices[uuid]
        memory = Memory()
        if error := self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return int(error)
        rates, milliwatts, reasons = _Utilization(), ctypes.c_uint(), ctypes.c_ulonglong()
        knows_rates = self._fill("nvmlDeviceGetUtilizationRates", handle, rates)
        knows_power = self._fill("nvmlDeviceGetPowerUsage", handle, milliwatts)
        knows_clocks = self._fill("nvmlDeviceGetCurrentClocksThrottleReasons", handle, reasons)
        return GpuState(
            device=gpu.index,
            uuid=uuid,
            name=gpu.name,
            used_bytes=memory.used,
            total_bytes=memory.total,
            utilization=rates.gpu / 100 if knows_rates else None,
            watts=milliwatts.value / 1000 if knows_power else None,
            throttling=_throttling(reasons.value) if knows_clocks else None,
            ecc_errors=self._ecc_errors(handle),
        )

    def _ecc_errors(self, handle: ctypes.c_void_p) -> tuple[int, int] | None:
        corrected, uncorrected = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        name, since = "nvmlDeviceGetTotalEccErrors", _SINCE_THE_DRIVER_WAS_LOADED
        if not self._fill(name, handle, _CORRECTED, since, corrected):
            return None  # the GPU has no ECC, or it is disabled
        self._fill(name, handle, _UNCORRECTED, since, uncorrected)
        return corrected.value, uncorrected.value

    def _fill(self, name: str, *arguments: Any) -> bool:
        """Call a function that writes to its last argument; return whether it succeeded."""
        *values, target = arguments
        function = getattr(self._library, name, None)
        return function is not None and not function(*values, ctypes.byref(target))


class NoGpuReader(GpuReader):
    """Reads no GPUs, on a machine without NVML."""

    def __init__(self) -> None:
        super().__init__(_NoLibrary())


class _NoLibrary:
    def nvmlInit_v2(self) -> int:  # noqa: N802 - as the library calls it
        return _NO_FUNCTION


def open_gpus(library: Any = None, patience: float = PATIENCE) -> GpuReader:
    """Return a reader of this machine's GPUs; `library` defaults to the driver's NVML.

    A child process calls the driver first. If the driver does not answer within `patience` seconds,
    the result is a reader without GPUs.
    """
    if library is None:
        if not (found := find_gpus(patience)).answers:
            _log.warning("cannot measure GPUs", extra={"reason": found.reason})
            return NoGpuReader()
        library = driver_library()
    if library is None:
        return NoGpuReader()
    try:
        return GpuReader(library)
    except AttributeError as error:  # the library lacks a function
        _log.debug("cannot measure GPUs", extra={"reason": str(error)})
        return NoGpuReader()


def _throttling(reasons: int) -> list[str]:
    return [name for name, bits in THROTTLING.items() if reasons & bits]
