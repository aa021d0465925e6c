"""Measures a backend's process: the delays of its event loop, memory and CPU time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluicegate.wire.durations import SECONDS, DurationCounts
from sluicegate.wire.loop_delays import measured_loop

_STATM: Final = Path("/proc/self/statm")


class ProcessFigures:
    """Counts the delays of the event loop, and reads memory and CPU time on demand."""

    def __init__(self) -> None:
        self.lags = DurationCounts(SECONDS)
        self.holds = DurationCounts(SECONDS)

    def resident_bytes(self) -> int:
        """Return the resident memory in bytes, or 0 if the system does not report it."""
        try:
            return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    def processor_seconds(self) -> float:
        """Return the CPU time since the start."""
        used = os.times()
        return used.user + used.system

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the running event loop in the `with` block; see `measured_loop`."""

        def count(late: float, held: float) -> None:
            self.lags.add(late)
            self.holds.add(held)

        with measured_loop(count):
            yield
