"""Shows the progress of a job: on one line of a terminal, or as occasional lines of a log."""

from collections import deque
from collections.abc import Callable
from typing import TextIO

# Seconds between two updates, on a terminal and in a log.
_ON_TERMINAL, _ELSEWHERE = 0.5, 30.0
# The rate is measured over this many seconds.
_WINDOW = 60.0
_MINUTE, _HOUR = 60, 3600


class ProgressReport:
    """Reports the finished rows, their rate and the time left; a `total` of 0 means unknown."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], *, total: int = 0) -> None:
        self._stream = stream
        self._clock = clock
        self._total = total
        self._is_terminal = stream.isatty()
        self._written = clock()
        self._seen: deque[tuple[float, int]] = deque()

    def begin(self, done: int) -> None:
        """Record the rows that earlier runs have finished."""
        self._seen.append((self._clock(), done))

    def update(self, done: int, failed: int) -> None:
        """Record the finished rows, and report them if an update is due."""
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:  # noqa: PLR2004 - two for a rate
            self._seen.popleft()
        if now - self._written >= (_ON_TERMINAL if self._is_terminal else _ELSEWHERE):
            self._written = now
            self._write(done, failed)

    def end(self, done: int, failed: int) -> None:
        """Report for the last time."""
        self._write(done, failed)
        if self._is_terminal:
            self._stream.write("\n")
            self._stream.flush()

    def _write(self, done: int, failed: int) -> None:
        line = self.line(done, failed)
        self._stream.write(f"\r{line}\x1b[K" if self._is_terminal else f"{line}\n")
        self._stream.flush()

    def line(self, done: int, failed: int) -> str:
        """Return the text of a report."""
        (first, before), (last, _) = self._seen[0], self._seen[-1]
        rate = (done - before) / (last - first) if last > first else 0.0
        of_all, left = "", ""
        if self._total:
            of_all = f"/{self._total:,} ({min(1.0, done / self._total):.1%})"
            if rate and done < self._total:
                left = f", {shown_duration((self._total - done) / rate)} left"
        errors = f", {failed:,} failed" if failed else ""
        return f"{done:,}{of_all} rows, {rate:,.0f} rows/s{left}{errors}"


def shown_duration(seconds: float) -> str:
    """Format a duration for people."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
