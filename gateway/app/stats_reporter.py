"""Reports a worker's statistics to the metrics and to the operators' listener."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec

from gateway.tasks import PeriodicTask
from gateway.telemetry.metrics import GatewayMetrics

Source = Callable[[], msgspec.Struct]


class WorkerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds statistics of a worker as a whole.

    `tasks` is the number of tasks on the worker's event loop. `generation` is the number of the
    configuration document that the worker applies. `reloads` and `failed_reloads` count changes of
    this document. `state_redis` and `cache_redis` say whether the worker can reach each Redis.
    """

    tasks: int
    generation: int
    reloads: int
    failed_reloads: int
    state_redis: bool
    cache_redis: bool


class StatsReporter:
    """Reads statistics and updates metrics every `interval` seconds, and once when it stops.

    The statistics in `sources` go to the metrics and to the operators' listener. The statistics in
    `labelled` come with their own labels, and go only to the metrics. The statistics in `details`
    go only to the operators' listener. The functions in `publish` update further metrics.
    """

    def __init__(
        self,
        *,
        metrics: GatewayMetrics,
        sources: Mapping[str, Source],
        details: Mapping[str, Callable[[], object]],
        labelled: Mapping[str, Source] | None = None,
        publish: Sequence[Callable[[], None]] = (),
        interval: float = 1.0,
    ) -> None:
        self._metrics = metrics
        self._sources = sources
        self._details = details
        self._labelled = labelled or {}
        self._publish = publish
        self._reporting = PeriodicTask(
            self._update_metrics, interval=interval, failure="the metrics cannot be updated"
        )

    async def __aenter__(self) -> Self:
        await self._update_metrics()
        await self._reporting.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._reporting.__aexit__(*exc_info)
        self._metrics.flush()

    def report(self) -> bytes:
        """Return all statistics as JSON, for the operators' listener."""
        found: dict[str, object] = {name: source() for name, source in self._sources.items()}
        found |= {name: source() for name, source in self._details.items()}
        return msgspec.json.encode(found)

    async def _update_metrics(self) -> None:
        self._metrics.flush()
        for name, source in (*self._sources.items(), *self._labelled.items()):
            self._metrics.statistics(name, source())
        for publish in self._publish:
            publish()
