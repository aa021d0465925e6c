"""Replaces the primitives below the module `threading` by those of cooperative threads.

`threading`, `queue` and `concurrent.futures` are Python above locks and the start of threads. Their
own code runs in a simulation, above `Lock` and `start_new_thread` of this module.
"""

import _thread
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from testing.simulation.scheduler import Strand, here

_real_ident: Final = _thread.get_ident
_real_start: Final = _thread.start_new_thread
_real_sentinel: Final = vars(_thread).get("_set_sentinel")
_real_current_thread: Final = threading.current_thread
_FIRST_IDENT: Final = 1 << 60


def check_python() -> None:
    """Refuse a Python whose threads the simulation cannot replace.

    Raises:
        RuntimeError: this is Python 3.13 or newer.
    """
    if _real_sentinel is None:
        raise RuntimeError(
            "the simulation needs Python 3.11 or 3.12: newer ones start threads in C"
        )


class Lock:
    """A lock of `threading`. A cooperative thread that waits for it lets others run.

    The state is in a real lock, so that locks that were created outside a simulation work inside.
    """

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._waiting: deque[Strand] = deque()
        self._is_shared = here.strand is None
        """Whether several simulated processes have it, because a module created it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """See `threading.Lock`."""
        strand, scheduler = here.strand, here.scheduler
        if strand is None or scheduler is None:
            return self._lock.acquire(blocking, timeout)
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if blocking:
            scheduler.may_switch()
        until = None if timeout < 0 else strand.process.machine.clock.after(timeout)
        while not self._lock.acquire(blocking=False):
            if not blocking or (until is not None and scheduler.now >= until):
                return False
            self._waiting.append(strand)
            scheduler.wait(until)
            with contextlib.suppress(ValueError):
                self._waiting.remove(strand)
        if self._is_shared:
            strand.process.shared_locks[id(self)] = self
        return True

    def release(self) -> None:
        """See `threading.Lock`."""
        self._lock.release()
        strand, scheduler = here.strand, here.scheduler
        if self._is_shared and strand is not None:
            strand.process.shared_locks.pop(id(self), None)
        while self._waiting and scheduler is not None:
            waiting = self._waiting.popleft()
            if waiting.process.is_alive:
                scheduler.wake(waiting)
                break

    def locked(self) -> bool:
        """See `threading.Lock`."""
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock = _thread.allocate_lock()
        self._waiting.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class NoLock:
    """Stands for a lock of the whole interpreter, which simulated processes do not share."""

    def __enter__(self) -> None:
        """Do nothing: one thread runs at a time."""

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing."""


def start_new_thread(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> int:
    """Start a thread; inside a simulation a cooperative one of the running process."""
    strand, scheduler = here.strand, here.scheduler
    if strand is None or scheduler is None:
        return _real_start(function, args, kwargs or {})
    process = strand.process

    def run() -> None:
        try:
            function(*args, **(kwargs or {}))
        except SystemExit:
            pass
        finally:
            for call in new.run_at_end:
                call()
            process.strands.remove(new)

    process.threads += 1
    new = Strand(process, f"thread-{process.threads}", run)
    new.ident = _FIRST_IDENT + scheduler.new_number()
    process.strands.append(new)
    scheduler.start(new)
    return new.ident


def get_ident() -> int:
    """Return the number of the running thread. Main threads have that of the real main thread."""
    strand = here.strand
    return (strand.ident if strand is not None else 0) or _real_ident()


def set_sentinel() -> Any:
    """Return a lock that is released when the running thread ends."""
    strand = here.strand
    if strand is None:
        return _real_sentinel() if _real_sentinel is not None else None
    lock = Lock()
    strand.run_at_end.append(lambda: _release(lock))
    return lock


def _release(lock: Lock) -> None:
    if lock.locked():
        lock.release()


def owner_of_locals() -> object:
    """Return the object of the running thread that keeps its values of `threading.local`."""
    return here.strand or _real_current_thread()
