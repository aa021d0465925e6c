"""Measures a process: its event loop's delay, resident memory and CPU time."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from backends.durations import DurationCounts
from gateway.telemetry.catalogue import SECONDS
from gateway.telemetry.instruments import Instruments

INTERVAL: Final = 0.5
_STATM: Final = Path("/proc/self/statm")


class ProcessMetrics:
    """Publishes the metrics of this process, whose role is `role`."""

    def __init__(self, registry: CollectorRegistry, *, role: str) -> None:
        self._instruments = Instruments(registry)
        self._role = role
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._lags = DurationCounts(SECONDS)

    def late(self, seconds: float) -> None:
        """Count how late a timer was."""
        self._lags.add(max(0.0, seconds))

    def publish(self) -> None:
        """Publish event-loop delays, memory and CPU time."""
        counts, total = self._lags.take()
        labels = (self._role,)
        self._instruments.add_durations("event_loop_lag_seconds", labels, counts, total)
        used = os.times()
        self._instruments.set_total("process_cpu_seconds_total", used.user + used.system, labels)
        with contextlib.suppress(OSError):
            resident = int(_STATM.read_bytes().split()[1]) * self._page_bytes
            self._instruments.set_gauge("process_resident_memory_bytes", resident, labels)


@contextlib.asynccontextmanager
async def measured_process(
    role: str, registry: CollectorRegistry = REGISTRY
) -> AsyncIterator[None]:
    """Measure this process twice a second, with a timer on the running event loop."""
    metrics = ProcessMetrics(registry, role=role)
    loop = asyncio.get_running_loop()
    due = perf_counter() + INTERVAL
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer, due
        now = perf_counter()
        metrics.late(now - due)
        metrics.publish()
        due = perf_counter() + INTERVAL
        timer = loop.call_later(INTERVAL, look)

    timer = loop.call_later(INTERVAL, look)
    try:
        yield
    finally:
        timer.cancel()
        metrics.publish()
