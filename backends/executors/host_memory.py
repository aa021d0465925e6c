"""Allocates host memory for copies to and from a device: for a GPU, pinned (page-locked) memory."""

import ctypes
import math
import mmap
import weakref
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

Array = NDArray[Any]
_FLAGS = ctypes.c_uint(0)
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class HostMemory(Protocol):
    """Allocates arrays. The caller must give back each array."""

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """Return an array of zeros."""
        ...

    def give_back(self, array: Array) -> None:
        """Free an array that no copy uses any more."""
        ...


class PageableMemory(HostMemory):
    """Allocates ordinary memory, for the CPU and for systems that cannot pin pages."""

    @override
    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype=kind)

    @override
    def give_back(self, array: Array) -> None:
        return


class PinnedMemory(HostMemory):
    """Allocates page-locked memory, which a device can copy directly.

    Each array has its own pages, because CUDA refuses copies from partly pinned memory. All arrays
    are unpinned when this object is garbage-collected. `runtime` is the CUDA runtime library.
    Arrays that CUDA cannot pin stay pageable and are counted in `refused`.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._pinned: dict[int, Array] = {}
        self.refused = 0
        # Do not unpin at interpreter exit: by then, the CUDA library has released everything.
        weakref.finalize(self, _unpin_all, runtime, self._pinned).atexit = False

    @override
    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        count = math.prod(shape)
        size = -(-max(1, count * kind.itemsize) // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = mmap.mmap(-1, size)
        array = np.frombuffer(pages, dtype=kind, count=count).reshape(shape)
        address = array.ctypes.data
        if self._runtime.cudaHostRegister(_pointer(address), ctypes.c_size_t(size), _FLAGS):
            self.refused += 1
        else:
            self._pinned[address] = array
        return array

    @override
    def give_back(self, array: Array) -> None:
        address = array.ctypes.data
        if self._pinned.pop(address, None) is not None:
            self._runtime.cudaHostUnregister(_pointer(address))


def _unpin_all(runtime: Any, pinned: dict[int, Array]) -> None:
    for address in pinned:
        runtime.cudaHostUnregister(_pointer(address))
    pinned.clear()


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def host_memory(device: str) -> HostMemory:
    """Return the allocator for a device: pinned memory for CUDA if its runtime library loads."""
    if device == "cuda":
        for name in _RUNTIMES:
            try:
                return PinnedMemory(ctypes.CDLL(name))
            except OSError:
                continue
    return PageableMemory()
