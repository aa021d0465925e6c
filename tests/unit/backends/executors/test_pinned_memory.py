"""Host memory is pinned where a device can be told, and given back once."""

import ctypes
import gc
import mmap

import numpy as np

from sluicegate.backends.executors.host_memory import PageableMemory, PinnedMemory, host_memory


class Runtime:
    """Records what CUDA's runtime is told; `status` is what it answers."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.registered: dict[int, int] = {}

    def cudaHostRegister(  # noqa: N802 - CUDA's name
        self, address: ctypes.c_void_p, size: ctypes.c_size_t, _flags: ctypes.c_uint
    ) -> int:
        if self.status == 0:
            self.registered[address.value or 0] = size.value
        return self.status

    def cudaHostUnregister(self, address: ctypes.c_void_p) -> int:  # noqa: N802 - CUDA's name
        del self.registered[address.value or 0]
        return 0


def test_an_array_is_pinned_whole_and_given_back_once() -> None:
    runtime = Runtime()
    memory = PinnedMemory(runtime)

    array = memory.array((3, 5), np.dtype(np.int32))
    pinned = dict(runtime.registered)
    memory.give_back(array)
    memory.give_back(array)

    assert pinned == {array.ctypes.data: mmap.PAGESIZE}
    assert runtime.registered == {}
    assert not array.any()
    assert array.flags.writeable


def test_arrays_share_no_page() -> None:
    """CUDA refuses a copy from memory that is pinned in part."""
    runtime = Runtime()
    memory = PinnedMemory(runtime)

    arrays = [memory.array((size,), np.dtype(np.int32)) for size in (3, 5000, 1)]

    assert all(array.ctypes.data % mmap.PAGESIZE == 0 for array in arrays)
    assert runtime.registered.keys() == {array.ctypes.data for array in arrays}


def test_nothing_stays_pinned_behind_its_owner() -> None:
    """Its pages become other memory, which a device must not take for the old."""
    runtime = Runtime()
    memory = PinnedMemory(runtime)
    memory.array((3,), np.dtype(np.int32))

    del memory
    gc.collect()

    assert runtime.registered == {}


def test_memory_that_cannot_be_pinned_is_used_as_it_is_and_counted() -> None:
    """A container may lock little memory; slower is better than not at all."""
    memory = PinnedMemory(Runtime(status=2))

    array = memory.array((2,), np.dtype(np.float32))
    memory.give_back(array)

    assert array.shape == (2,)
    assert memory.refused == 1


def test_a_cpu_needs_no_pinned_memory() -> None:
    assert isinstance(host_memory("cpu"), PageableMemory)
