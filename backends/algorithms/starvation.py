"""Tells a process that takes long from one that has no core."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import msgspec

_LONGEST = 10.0
_SECOND = 1e9


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the seconds that went by for a process, and in how many it waited for a core.

    A wait for a core is no use of the time that a process is allowed. It ends all the same after
    ten times as long, since others wait, too; then the process is starved.
    """

    elapsed: float
    delay: float

    def since(self, before: "Clock") -> "Clock":
        """Return what went by since `before`."""
        return Clock(elapsed=self.elapsed - before.elapsed, delay=self.delay - before.delay)

    def left(self, allowed: float) -> float:
        """Return how long the process may at least go on, negative after that."""
        return min(allowed - self.elapsed + self.delay, _LONGEST * allowed - self.elapsed)

    def is_starved(self, allowed: float) -> bool:
        """Return whether the process had less than it is allowed."""
        return self.elapsed - self.delay < allowed


class CoreDelays:
    """Reads for how long the threads of a process were ready to run, and others had the cores.

    The kernel counts a wait when it ends. One that goes on began after the thread was last seen to
    have run, and is counted from the reading before that: a little too long, until it ends.

    Several threads may wait for each other. So together they wait for no longer than none of them
    ran: a process that computes in many threads uses its time.
    """

    def __init__(
        self, process: int, *, root: Path = Path("/proc"), clock: Callable[[], float] = monotonic
    ) -> None:
        self._folder = root / str(process)
        self._clock = clock
        self._ran, self._waited, self._ran_before = 0, 0, 0
        self._read_at = self._since = self._counted_at = clock()
        self.known = 0.0
        """The waits that had ended when it was read last."""

    def read(self, *, has_threads: bool) -> float:
        """Return the seconds so far, of a process that has ended the last ones known.

        Without `has_threads` it has only the first one.
        """
        now, ran, waited, is_ready = self._clock(), 0, 0, False
        try:
            for thread in self._folder.glob("task/*") if has_threads else (self._folder,):
                # Nanoseconds on a core, nanoseconds of waits for one, turns (proc(5)).
                times = (thread / "schedstat").read_bytes().split()
                ran, waited = ran + int(times[0]), waited + int(times[1])
                is_ready |= b") R " in (thread / "stat").read_bytes()
        except (OSError, IndexError):  # it has ended, or this kernel does not tell
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
