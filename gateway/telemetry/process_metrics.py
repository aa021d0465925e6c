"""Measures the delays of a process's event loop, its resident memory and its CPU time."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter, thread_time
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from backends.durations import DurationCounts
from gateway.telemetry.catalogue import SECONDS
from gateway.telemetry.instruments import Instruments

INTERVAL: Final = 0.1
PUBLISHED_EVERY: Final = 0.5
_STATM: Final = Path("/proc/self/statm")
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
_NANOSECOND: Final = 1e-9


class ProcessMetrics:
    """Publishes the metrics of this process, whose role is `role`."""

    def __init__(self, registry: CollectorRegistry, *, role: str) -> None:
        self._instruments = Instruments(registry)
        self._role = role
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._lags = DurationCounts(SECONDS)
        self._holds = DurationCounts(SECONDS)

    def late(self, seconds: float, *, held: float) -> None:
        """Count a timer that was `seconds` late because code held the loop for at least `held`."""
        self._lags.add(max(0.0, seconds))
        self._holds.add(max(0.0, held))

    def publish(self) -> None:
        """Publish event-loop delays, memory and CPU time."""
        labels = (self._role,)
        for name, durations in (("lag", self._lags), ("held", self._holds)):
            counts, total = durations.take()
            self._instruments.add_durations(f"event_loop_{name}_seconds", labels, counts, total)
        used = os.times()
        self._instruments.set_total("process_cpu_seconds_total", used.user + used.system, labels)
        with contextlib.suppress(OSError):
            resident = int(_STATM.read_bytes().split()[1]) * self._page_bytes
            self._instruments.set_gauge("process_resident_memory_bytes", resident, labels)


@contextlib.asynccontextmanager
async def measured_process(
    role: str, registry: CollectorRegistry = REGISTRY
) -> AsyncIterator[None]:
    """Measure this process ten times a second, with a timer on the running event loop."""
    metrics = ProcessMetrics(registry, role=role)
    loop = asyncio.get_running_loop()
    due, published_at = perf_counter() + INTERVAL, perf_counter()
    waited, ran = _waited(), thread_time()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer, due, published_at, waited, ran
        now, waits, runs = perf_counter(), _waited() - waited, thread_time() - ran
        waited, ran = waited + waits, ran + runs
        # Some waits, and some of the processor time, were before the timer was due.
        metrics.late(now - due, held=max(now - due - waits, runs - INTERVAL))
        if now - published_at >= PUBLISHED_EVERY:
            metrics.publish()
            published_at = now
        due = perf_counter() + INTERVAL
        timer = loop.call_later(INTERVAL, look)

    timer = loop.call_later(INTERVAL, look)
    try:
        yield
    finally:
        timer.cancel()
        metrics.publish()


def _waited() -> float:
    """Return for how many seconds this thread has waited for a processor core (proc(5))."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) * _NANOSECOND
    except (OSError, IndexError):  # this kernel has no schedstat
        return 0.0
