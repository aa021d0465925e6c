"""Publishes metrics about the ledger, the cache Redis, this machine's disk and the version."""

import asyncio
import logging
import shutil
from importlib.metadata import version
from typing import Final

from sluicegate.gateway.cache.statistics import BYTES, CAPACITY, ENTRIES, EVICTIONS
from sluicegate.gateway.errors import GatewayError
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.caches import redis_statistics
from sluicegate.gateway.redis.connect import PipelinedClient
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.tasks import pause
from sluicegate.gateway.telemetry.instruments import Instruments
from sluicegate.gateway.telemetry.metrics import DEPENDENCY_UP
from sluicegate.wire.metric_declaration import Aggregation, gauge

_log = logging.getLogger(__name__)
_INTERVAL: Final = 5.0
_REDIS: Final = ("redis",)
_BUILD: Final = gauge(
    "sluicegate_build_info", "Always 1; the label is the version.", "version", over=Aggregation.MOST
)
_FREE: Final = gauge(
    "sluicegate_data_disk_free_bytes",
    "Free bytes on the data directory's disk.",
    over=Aggregation.LEAST,
)
_DEAD_LETTERS: Final = gauge(
    "sluicegate_dead_letters",
    "Dead letters in the ledger: stream entries that are not valid usage events.",
    "stream",
    over=Aggregation.MOST,
)


class MachineMetrics:
    """Updates the metrics every five seconds. A value that cannot be read stays as it was."""

    def __init__(
        self,
        *,
        settings: Settings,
        ledger: Ledger,
        cache_redis: PipelinedClient,
        instruments: Instruments,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._cache_redis = cache_redis
        self._instruments = instruments

    async def follow(self, stop: asyncio.Event) -> None:
        """Publish every five seconds until `stop` is set."""
        while not stop.is_set():
            try:
                await self.publish()
            except Exception:  # noqa: BLE001 - one failure must not end later updates
                _log.exception("the metrics of the machine cannot be updated")
            await pause(stop, _INTERVAL)

    async def publish(self) -> None:
        """Read and publish all values once."""
        self._instruments.set_gauge(_BUILD, 1.0, (version("sluicegate"),))
        try:
            free = shutil.disk_usage(self._settings.data_dir).free
            self._instruments.set_gauge(_FREE, free)
        except OSError:
            pass  # the disk of the data directory is missing
        await asyncio.gather(self._publish_ledger(), self._publish_redis())

    async def _publish_ledger(self) -> None:
        is_up = False
        try:
            dead = await asyncio.to_thread(self._ledger.recorder.dead_letters)
            self._instruments.set_gauge(_DEAD_LETTERS, dead, ("usage",))
            is_up = True
        except GatewayError:
            pass  # the gauge below reports that the ledger cannot be reached
        self._instruments.set_gauge(DEPENDENCY_UP, float(is_up), ("ledger",))

    async def _publish_redis(self) -> None:
        found = await redis_statistics(self._cache_redis)
        if found is None:
            return
        instruments = self._instruments
        instruments.set_gauge(ENTRIES, found.get("keys", 0), _REDIS)
        instruments.set_gauge(BYTES, found.get("used_memory", 0), _REDIS)
        instruments.set_gauge(CAPACITY, found.get("maxmemory", 0), _REDIS)
        evicted = found.get("evicted_keys", 0)
        # Redis itself counts evictions. A former process may have written some of them to the
        # metric files, so this process counts from the present number on.
        instruments.begin_total(EVICTIONS, evicted, _REDIS)
        instruments.set_total(EVICTIONS, evicted, _REDIS)
