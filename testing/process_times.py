"""Records the processor time of a process and of its descendants, while they run."""

import contextlib
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Collection
from pathlib import Path
from typing import Self

_EVERY = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessTimes:
    """Sums the processor time of `pid` and its descendants while entered.

    Processes in `without` are left out. The last half second of a process that ends may not be
    counted.
    """

    def __init__(self, pid: int, *, without: Collection[int] = ()) -> None:
        self._pid = pid
        self._without = without
        self._spent: dict[int, float] = {}
        self._samples: list[tuple[float, float]] = []
        self._before = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-times", daemon=True)

    def __enter__(self) -> Self:
        self._before = self._total()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    def until(self, moment: float) -> float:
        """Return the processor seconds spent until `moment`, a reading of `time.time`."""
        place = bisect_right(self._samples, (moment, float("inf")))
        (before, spent) = self._samples[max(0, place - 1)]
        if place in {0, len(self._samples)}:
            return spent
        after, more = self._samples[place]
        return spent + (more - spent) * (moment - before) / (after - before)

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self.sample()

    def sample(self) -> None:
        """Record the processor time until now."""
        self._samples.append((time.time(), self._total() - self._before))

    def _total(self) -> float:
        self._spent |= descendants(self._pid)
        return sum(spent for pid, spent in self._spent.items() if pid not in self._without)


def descendants(pid: int) -> dict[int, float]:
    """Return the processor seconds of a process and of each of its descendants, by process id."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):  # it has ended
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found |= descendants(int(child))
    return found
