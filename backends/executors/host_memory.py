"""Memory of this machine that a device copies from and to, pinned where there is a device."""

import ctypes
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

Array = NDArray[Any]
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class HostMemory(Protocol):
    """Makes arrays to reuse; what it made must be given back."""

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """Return an array of zeros."""
        ...

    def give_back(self, array: Array) -> None:
        """Take back an array that nobody copies from or to any more."""
        ...


class PageableMemory(HostMemory):
    """Plain memory: for the CPU, and where pages cannot be pinned."""

    @override
    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype=kind)

    @override
    def give_back(self, array: Array) -> None:
        return


class PinnedMemory(HostMemory):
    """Page-locked memory: a device copies it without a detour. Falls back to plain memory.

    `runtime` is CUDA's runtime library; what it refuses to pin is counted in `refused`.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._pinned: dict[int, Array] = {}
        self.refused = 0

    @property
    def pinned_bytes(self) -> int:
        """How much is page-locked now."""
        return sum(array.nbytes for array in self._pinned.values())

    @override
    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        array = np.zeros(shape, dtype=kind)
        address = array.ctypes.data
        size = ctypes.c_size_t(max(1, array.nbytes))
        if self._runtime.cudaHostRegister(ctypes.c_void_p(address), size, ctypes.c_uint(0)):
            self.refused += 1
        else:
            self._pinned[address] = array
        return array

    @override
    def give_back(self, array: Array) -> None:
        if self._pinned.pop(array.ctypes.data, None) is not None:
            self._runtime.cudaHostUnregister(ctypes.c_void_p(array.ctypes.data))


def host_memory(device: str) -> HostMemory:
    """Return the memory for a device: pinned for CUDA where its runtime library is loaded."""
    if device == "cuda":
        for name in _RUNTIMES:
            try:
                return PinnedMemory(ctypes.CDLL(name))
            except OSError:
                continue
    return PageableMemory()
