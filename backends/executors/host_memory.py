"""Allocates host memory that a device copies from and to, pinned where there is a device."""

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
    """Makes arrays for reuse, which must be given back."""

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """Return an array of zeros."""
        ...

    def give_back(self, array: Array) -> None:
        """Take back an array that nobody copies from or to any more."""
        ...


class PageableMemory(HostMemory):
    """Allocates plain memory: for the CPU, and where pages cannot be pinned."""

    @override
    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        return np.zeros(shape, dtype=kind)

    @override
    def give_back(self, array: Array) -> None:
        return


class PinnedMemory(HostMemory):
    """Allocates page-locked memory, which devices copy directly; falls back to plain.

    Each array has pages of its own: a copy from memory that is pinned in part is refused. What is
    still pinned when this goes is unpinned before its pages are used for anything else.
    `runtime` is CUDA's runtime library; what it refuses to pin is counted in `refused`.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._pinned: dict[int, Array] = {}
        self.refused = 0
        # Not at the interpreter's end: the library has released everything by then.
        weakref.finalize(self, _unpin_all, runtime, self._pinned).atexit = False

    @property
    def pinned_bytes(self) -> int:
        """How much is page-locked now."""
        return sum(array.nbytes for array in self._pinned.values())

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
    """Return the memory for a device: pinned for CUDA where its runtime library is loaded."""
    if device == "cuda":
        for name in _RUNTIMES:
            try:
                return PinnedMemory(ctypes.CDLL(name))
            except OSError:
                continue
    return PageableMemory()
