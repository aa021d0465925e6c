"""Wakes the event loop on the core of the calling worker thread.

Linux wakes a thread on the core where it last ran, unless another core is idle. A worker thread
that finishes a batch still occupies its core when it wakes the loop. So Linux often puts the loop
on the core of another worker thread, which then loses milliseconds. But the core of the first
worker thread becomes idle immediately after the wake-up.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Set as AbstractSet
from functools import partial
from typing import Protocol

_log = logging.getLogger(__name__)
_NO_CORES: AbstractSet[int] = frozenset()


class CoreAffinity(Protocol):
    """Reads and sets the cores that threads may use; raises `OSError` if the kernel refuses."""

    def current(self) -> int:
        """Return the core of the calling thread, -1 if it is unknown."""
        ...

    def allowed(self) -> AbstractSet[int]:
        """Return the cores that the calling thread may use."""
        ...

    def restrict(self, thread: int, cores: AbstractSet[int]) -> None:
        """Restrict the thread with the native id `thread` to `cores`.

        The thread moves to one of these cores immediately.
        """
        ...


class LinuxAffinity:
    """Calls the Linux kernel; needs a C library with `sched_getcpu`."""

    def __init__(self) -> None:
        # `PyDLL` keeps the GIL, because the call is faster than releasing and taking the GIL.
        self._sched_getcpu = ctypes.PyDLL(None).sched_getcpu

    def current(self) -> int:
        """Return the core of the calling thread, -1 if it is unknown."""
        return int(self._sched_getcpu())

    def allowed(self) -> AbstractSet[int]:
        """Return the cores that the calling thread may use."""
        return os.sched_getaffinity(0)

    def restrict(self, thread: int, cores: AbstractSet[int]) -> None:
        """Restrict the thread with the native id `thread` to `cores`.

        The thread moves to one of these cores immediately.
        """
        os.sched_setaffinity(thread, cores)


def system_affinity() -> CoreAffinity | None:
    """Return an object that sets core affinities on this operating system, or `None`."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return LinuxAffinity()
    except (OSError, AttributeError):
        return None


class LoopWakeup:
    """Schedules calls on an event loop from other threads.

    Create the object in the loop's thread. `schedule` is the loop's `call_soon_threadsafe`. Without
    `affinity`, the kernel chooses the core.
    """

    def __init__(
        self,
        schedule: Callable[[Callable[[], object]], object],
        affinity: CoreAffinity | None = None,
    ) -> None:
        self._schedule = schedule
        self._affinity = affinity
        self._thread = threading.get_native_id()

    def call(self, callback: Callable[[], object]) -> None:
        """Schedule a call; the kernel chooses the loop's core."""
        self._schedule(callback)

    def call_here(self, callback: Callable[[], object]) -> None:
        """Schedule a call, and wake the loop on the core of the calling thread.

        After the wake-up, the loop may use all cores of the calling thread again.
        """
        affinity = self._affinity
        allowed = self._restrict_to_own_core(affinity) if affinity else _NO_CORES
        if affinity is None or not allowed:
            self._schedule(callback)
            return
        # This thread and the loop both lift the restriction. The loop may run first, and threads
        # that it starts would inherit the restriction.
        try:
            self._schedule(partial(self._call_on, affinity, allowed, callback))
        finally:
            self._restrict(affinity, allowed)

    def _call_on(
        self, affinity: CoreAffinity, cores: AbstractSet[int], callback: Callable[[], object]
    ) -> None:
        self._restrict(affinity, cores)
        callback()

    def _restrict_to_own_core(self, affinity: CoreAffinity) -> AbstractSet[int]:
        """Restrict the loop's thread to the caller's core.

        Return the cores that the loop's thread may use again after the wake-up.

        Return no cores if the thread was not restricted.
        """
        try:
            allowed, core = affinity.allowed(), affinity.current()
        except OSError as error:
            self._give_up(error)
            return _NO_CORES
        if core not in allowed or len(allowed) == 1:
            return _NO_CORES
        return allowed if self._restrict(affinity, {core}) else _NO_CORES

    def _restrict(self, affinity: CoreAffinity, cores: AbstractSet[int]) -> bool:
        try:
            affinity.restrict(self._thread, cores)
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def _give_up(self, error: OSError) -> None:
        """Leave the choice of cores to the kernel from now on."""
        if self._affinity is None:
            return
        self._affinity = None
        _log.warning(
            "cannot set the core of the event loop; the kernel chooses it from now on",
            extra={"error": type(error).__name__},
        )
