"""Measures the delays of a process's event loop, its resident memory and its CPU time."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from gateway.telemetry.catalogue import SECONDS
from gateway.telemetry.instruments import Instruments
from wire.durations import DurationCounts
from wire.loop_delays import measured_loop

PUBLISHED_EVERY: Final = 0.5
_STATM: Final = Path("/proc/self/statm")


class ProcessMetrics:
    """Publishes the metrics of this process, whose role is `role`."""

    def __init__(self, registry: CollectorRegistry, *, role: str) -> None:
        self._instruments = Instruments(registry)
        self._role = role
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._lags = DurationCounts(SECONDS)
        self._holds = DurationCounts(SECONDS)

    def late(self, seconds: float, *, held: float) -> None:
        """Record that a timer was late by `seconds`.

        Code blocked the event loop for at least `held` seconds.
        """
        self._lags.add(seconds)
        self._holds.add(held)

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
    """Measure this process and its running event loop in the `with` block."""
    metrics = ProcessMetrics(registry, role=role)
    published_at = perf_counter()

    def count(late: float, held: float) -> None:
        nonlocal published_at
        metrics.late(late, held=held)
        if perf_counter() - published_at >= PUBLISHED_EVERY:
            metrics.publish()
            published_at = perf_counter()

    try:
        with measured_loop(count):
            yield
    finally:
        metrics.publish()
