"""Reports a worker's statistics to the metrics and to the operators' listener."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Self

import msgspec

from sluicegate.gateway.tasks import PeriodicTask
from sluicegate.gateway.telemetry.metrics import DEPENDENCY_UP, GatewayMetrics
from sluicegate.wire.metric_declaration import Aggregation, counter, gauge

Source = Callable[[], msgspec.Struct]

_RELOADS: Final = counter(
    "sluicegate_config_reloads_total",
    "Configuration documents that workers applied (`ok`) or could not apply (`failed`).",
    "result",
)
_TASKS: Final = gauge("sluicegate_tasks", "Tasks on the workers' event loops.")
_GENERATION: Final = gauge(
    "sluicegate_config_generation",
    "Lowest generation of the configuration document that a worker uses.",
    over=Aggregation.LEAST,
)


class WorkerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds statistics of a worker as a whole."""

    tasks: Annotated[int, _TASKS]
    generation: Annotated[int, _GENERATION]
    reloads: Annotated[int, _RELOADS("ok")]
    failed_reloads: Annotated[int, _RELOADS("failed")]
    state_redis: Annotated[bool, DEPENDENCY_UP("state_redis")]
    cache_redis: Annotated[bool, DEPENDENCY_UP("cache_redis")]


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
