"""Measures a backend's process: event-loop lag, memory and CPU time."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from backends.durations import DurationCounts
from backends.telemetry.catalogue import SECONDS

_INTERVAL: Final = 0.5
_STATM: Final = Path("/proc/self/statm")


class ProcessFigures:
    """Records event-loop lag, and reads memory and CPU time on demand."""

    def __init__(self) -> None:
        self.lags = DurationCounts(SECONDS)

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
        """Measure the lag of the running event loop twice a second, in the `with` block."""
        loop = asyncio.get_running_loop()
        due = perf_counter() + _INTERVAL
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer, due
            now = perf_counter()
            self.lags.add(max(0.0, now - due))
            due = now + _INTERVAL
            timer = loop.call_later(_INTERVAL, look)

        timer = loop.call_later(_INTERVAL, look)
        try:
            yield
        finally:
            timer.cancel()
