"""Names what the metrics of this machine say is degraded, for readiness."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from gateway.telemetry.metric_reading import MetricReader, Series

LOW_DISK: Final = 1 << 30
"""Bytes: a disk that has less free is named."""


class _Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """Says from which value on a gauge is named; `text` takes its labels and `value`."""

    metric: str
    applies: Callable[[float], bool]
    text: str


_GAUGES: Final = (  # causes first
    _Gauge(
        metric="sluicegate_data_disk_free_bytes",
        applies=lambda value: value < LOW_DISK,
        text="data_disk: {value:.0f} bytes are free",
    ),
    _Gauge(
        metric="sluicegate_event_log_writable",
        applies=lambda value: not value,
        text="event_log: a worker cannot write it",
    ),
    _Gauge(
        metric="sluicegate_dependency_up",
        applies=lambda value: not value,
        text="{dependency}: a process of this machine gets no answers",
    ),
    _Gauge(
        metric="sluicegate_breaker_open",
        applies=bool,
        text="{dependency}: a worker's circuit breaker to it is open",
    ),
)


class DegradationReader:
    """Reads the metrics of all processes of the machine in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._metrics = MetricReader(folder, [gauge.metric for gauge in _GAUGES])
        self._lock = asyncio.Lock()

    async def read(self) -> list[str]:
        """Return what is degraded, causes first."""
        try:
            async with self._lock:  # the reader is not thread-safe
                values = await asyncio.to_thread(self._metrics.read)
        except OSError:
            return ["metrics: they cannot be read"]
        return list(degraded_by(values))


def degraded_by(values: Mapping[Series, float]) -> Iterator[str]:
    """Yield what gauges say is degraded, causes first."""
    for gauge in _GAUGES:
        for (name, labels), value in sorted(values.items()):
            if name == gauge.metric and gauge.applies(value):
                yield gauge.text.format(value=value, **dict(labels))
