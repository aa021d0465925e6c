"""Finds problems of this machine in its metrics, for the readiness route."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from sluicegate.gateway.telemetry.metric_reading import MetricReader, Series

LOW_DISK: Final = 1 << 30
"""A machine with less free disk space than this (in bytes) counts as degraded."""


class _Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge, and the condition under which its value means a problem.

    `text` is the format string of the problem's description, with the gauge's labels and `value`.
    """

    metric: str
    applies: Callable[[float], bool]
    text: str


_GAUGES: Final = (  # causes come before their effects
    _Gauge(
        metric="sluicegate_data_disk_free_bytes",
        applies=lambda value: value < LOW_DISK,
        text="data_disk: {value:.0f} bytes are free",
    ),
    _Gauge(
        metric="sluicegate_event_log_writable",
        applies=lambda value: not value,
        text="event_log: a worker cannot write its event log",
    ),
    _Gauge(
        metric="sluicegate_dependency_up",
        applies=lambda value: not value,
        text="{dependency}: a process on this machine gets no response",
    ),
    _Gauge(
        metric="sluicegate_breaker_open",
        applies=bool,
        text="{dependency}: a worker's circuit breaker is open",
    ),
)


class DegradationReader:
    """Reads the metrics that all processes of the machine write to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._metrics = MetricReader(folder, [gauge.metric for gauge in _GAUGES])
        self._lock = asyncio.Lock()

    async def read(self) -> list[str]:
        """Return a sentence for each problem that the metrics show.

        Causes come before their effects.
        """
        try:
            async with self._lock:  # two threads must not use the reader at the same time
                values = await asyncio.to_thread(self._metrics.read)
        except OSError:
            return ["metrics: the files cannot be read"]
        return list(degraded_by(values))


def degraded_by(values: Mapping[Series, float]) -> Iterator[str]:
    """Yield a sentence for each gauge that shows a problem. Causes come before their effects."""
    for gauge in _GAUGES:
        for (name, labels), value in sorted(values.items()):
            if name == gauge.metric and gauge.applies(value):
                yield gauge.text.format(value=value, **dict(labels))
