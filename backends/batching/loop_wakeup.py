"""Wakes the event loop from a worker thread on the core which that thread is about to leave.

Linux wakes a thread where it ran last, unless it sees an idle core. When a worker thread hands over
the outcomes of a batch, its own core is not idle yet, and the cores of the others are busy: the
loop's thread often interrupts one of them, which then waits for milliseconds while the core of the
first one is idle.
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
    """Reads and sets which cores threads may use; raises `OSError` where the system refuses."""

    def current(self) -> int:
        """Return the core of the calling thread, -1 if it is unknown."""
        ...

    def allowed(self) -> AbstractSet[int]:
        """Return the cores that the calling thread may use."""
        ...

    def restrict(self, thread: int, cores: AbstractSet[int]) -> None:
        """Let a thread, by its native id, use these cores only; it moves at once if it must."""
        ...


class LinuxAffinity:
    """Asks the kernel for cores; needs Linux, and a C library with `sched_getcpu`."""

    def __init__(self) -> None:
        # The call takes less than to release and take the interpreter's lock.
        self._sched_getcpu = ctypes.PyDLL(None).sched_getcpu

    def current(self) -> int:
        """Return the core of the calling thread, -1 if it is unknown."""
        return int(self._sched_getcpu())

    def allowed(self) -> AbstractSet[int]:
        """Return the cores that the calling thread may use."""
        return os.sched_getaffinity(0)

    def restrict(self, thread: int, cores: AbstractSet[int]) -> None:
        """Let a thread, by its native id, use these cores only; it moves at once if it must."""
        os.sched_setaffinity(thread, cores)


def system_affinity() -> CoreAffinity | None:
    """Return the cores of this system's threads, `None` where it does not tell or set them."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return LinuxAffinity()
    except (OSError, AttributeError):
        return None


class LoopWakeup:
    """Schedules calls on an event loop from other threads. The loop's thread creates it.

    `schedule` is the loop's `call_soon_threadsafe`. Without `affinity` the kernel chooses the core.
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
        """Schedule a call; the kernel chooses the core on which the loop makes it."""
        self._schedule(callback)

    def call_here(self, callback: Callable[[], object]) -> None:
        """Schedule a call, and have the loop wake up on the core of the calling thread.

        Once awake, the loop may use all cores of the calling thread again.
        """
        affinity = self._affinity
        allowed = self._restrict_to_own_core(affinity) if affinity else _NO_CORES
        if affinity is None or not allowed:
            self._schedule(callback)
            return
        # The loop may be quicker than this thread, and threads that it starts inherit its cores.
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
        """Keep the loop's thread on the caller's core; return what it may use afterwards, if so."""
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
        """Leave the choice of cores to the kernel."""
        if self._affinity is None:
            return
        self._affinity = None
        _log.warning(
            "the core of the event loop could not be set; from now on the kernel chooses it",
            extra={"error": type(error).__name__},
        )
