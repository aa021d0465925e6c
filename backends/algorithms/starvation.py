"""Distinguishes a slow process from one that gets no processor core."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import msgspec

_LONGEST = 10.0
_SECOND = 1e9


class ProcessTime(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how long a process has existed, and how long it waited for a processor core.

    `elapsed` includes the waits, whose sum is `delay`. Waits do not count towards the time that a
    process is allowed. But after ten times the allowed time, a process must end, however long it
    waited.
    """

    elapsed: float
    delay: float

    def since(self, before: "ProcessTime") -> "ProcessTime":
        """Return the seconds since `before`."""
        return ProcessTime(elapsed=self.elapsed - before.elapsed, delay=self.delay - before.delay)

    def left(self, allowed: float) -> float:
        """Return a lower bound of the seconds that the process has left; negative if it is late."""
        return min(allowed - self.elapsed + self.delay, _LONGEST * allowed - self.elapsed)

    def is_starved(self, allowed: float) -> bool:
        """Return whether the process ran on a core for less than the allowed seconds."""
        return self.elapsed - self.delay < allowed


class CoreDelays:
    """Reads how long the threads of a process waited for a processor core.

    The kernel counts a wait only when the wait has ended, so an unfinished wait is estimated. The
    estimate assumes that the wait began at the last reading before the process stopped running. So
    the estimate is slightly too long.

    With several threads, one thread may wait while another one runs. Only time in which no thread
    ran counts as a wait. Otherwise, a process could get more time by starting many busy threads.
    """

    def __init__(
        self, process: int, *, root: Path = Path("/proc"), clock: Callable[[], float] = monotonic
    ) -> None:
        self._folder = root / str(process)
        self._clock = clock
        self._ran, self._waited, self._ran_before = 0, 0, 0
        self._read_at = self._since = self._counted_at = clock()
        self.known = 0.0
        """Seconds of all waits that had ended at the last reading."""

    def read(self, *, has_threads: bool) -> float:
        """Return the seconds waited so far, or the last known value if the process has ended.

        `has_threads` is false if the process has only one thread.
        """
        now, ran, waited, is_ready = self._clock(), 0, 0, False
        try:
            for thread in self._folder.glob("task/*") if has_threads else (self._folder,):
                # Nanoseconds on a core, nanoseconds waiting for a core, time slices (proc(5)).
                times = (thread / "schedstat").read_bytes().split()
                ran, waited = ran + int(times[0]), waited + int(times[1])
                is_ready |= b") R " in (thread / "stat").read_bytes()
        except (OSError, IndexError):  # the process has ended, or this kernel has no schedstat
            return self.known
        if ran != self._ran:
            self._ran, self._since = ran, self._read_at
        self._read_at = now
        if waited != self._waited or not is_ready:
            new = (waited - self._waited) / _SECOND
            if has_threads:
                none_ran = now - self._counted_at - (ran - self._ran_before) / _SECOND
                new = min(new, none_ran)
            self.known += max(0.0, new)
            self._waited, self._ran_before, self._counted_at = waited, ran, now
        return self.known + (now - self._since if is_ready else 0.0)
