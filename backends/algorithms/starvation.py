"""Tells a process that takes long from one that has no core."""

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
    """

    def __init__(self, process: int) -> None:
        self._folder = Path(f"/proc/{process}")
        self._ran = 0
        self._read_at = self._since = monotonic()
        self.known = 0.0
        """The waits that had ended when it was read last."""

    def read(self, *, has_threads: bool) -> float:
        """Return the seconds so far, of a process that has ended the last ones known.

        Without `has_threads` it has only the first one.
        """
        now, ran, waited, is_ready = monotonic(), 0, 0, False
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
        self.known = waited / _SECOND
        return self.known + (now - self._since if is_ready else 0.0)
