"""Measures the delays of a process's event loop, its resident memory and its CPU time."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from sluicegate.gateway.telemetry.instruments import Instruments
from sluicegate.wire.durations import SECONDS, DurationCounts
from sluicegate.wire.loop_delays import measured_loop
from sluicegate.wire.metric_declaration import counter, gauge, histogram

_LAG: Final = histogram(
    "sluicegate_event_loop_lag_seconds",
    "Delay of an event-loop timer, measured ten times a second. Roles other than `gateway` and "
    "`admin` run at a low priority.",
    "role",
)
_HELD: Final = histogram(
    "sluicegate_event_loop_held_seconds",
    "How long code of this process held the event loop, at least: the delay without the time that "
    "the loop's thread waited for a core.",
    "role",
)
_MEMORY: Final = gauge(
    "sluicegate_process_resident_memory_bytes", "Resident memory by process role.", "role"
)
_CPU: Final = counter("sluicegate_process_cpu_seconds_total", "CPU time by process role.", "role")

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
        for metric, durations in ((_LAG, self._lags), (_HELD, self._holds)):
            counts, total = durations.take()
            self._instruments.add_durations(metric, labels, counts, total)
        used = os.times()
        self._instruments.set_total(_CPU, used.user + used.system, labels)
        with contextlib.suppress(OSError):
            resident = int(_STATM.read_bytes().split()[1]) * self._page_bytes
            self._instruments.set_gauge(_MEMORY, resident, labels)


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
