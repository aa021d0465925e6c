"""Reports the statistics of a worker's parts to its metrics and the admin process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec

from gateway.tasks import PeriodicTask
from gateway.telemetry.metrics import GatewayMetrics

Source = Callable[[], msgspec.Struct]


class WorkerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the whole worker: `tasks` of its event loop, and whether Redis answers.

    `generation` is that of its document, `reloads` count those that it took.
    """

    tasks: int
    generation: int
    reloads: int
    failed_reloads: int
    state_redis: bool
    cache_redis: bool


class StatsReporter:
    """Reads `sources` (a part's name and its `statistics`) each `interval` seconds.

    Those in `labelled` have labels of their own, and are for the metrics alone; `details` are for
    the admin process alone. `publish` are called as often. Flushes the metrics as often, and once
    more at the end.
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
            self._update_metrics, interval=interval, failure="the metrics were not updated"
        )

    async def __aenter__(self) -> Self:
        await self._update_metrics()
        await self._reporting.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._reporting.__aexit__(*exc_info)
        self._metrics.flush()

    def report(self) -> bytes:
        """Return everything as JSON, for the admin listener."""
        parts: dict[str, object] = {name: source() for name, source in self._sources.items()}
        parts |= {name: source() for name, source in self._details.items()}
        return msgspec.json.encode(parts)

    async def _update_metrics(self) -> None:
        self._metrics.flush()
        for part, source in (*self._sources.items(), *self._labelled.items()):
            self._metrics.statistics(part, source())
        for publish in self._publish:
            publish()
