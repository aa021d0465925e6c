"""Publishes what no worker knows: the ledger, the cache's Redis, the disk, the version."""

import asyncio
import contextlib
import logging
import shutil
from importlib.metadata import version
from typing import Final

from gateway.admin.operations import redis_statistics
from gateway.errors import GatewayError
from gateway.ledger.ledger import Ledger
from gateway.redis.connect import PipelinedClient
from gateway.settings import Settings
from gateway.telemetry.instruments import Instruments

_log = logging.getLogger(__name__)
_INTERVAL: Final = 5.0
_REDIS: Final = ("redis",)


class MachineFigures:
    """Looks each five seconds. What cannot be read keeps its last value."""

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
        """Publish again and again until `stop`."""
        while not stop.is_set():
            try:
                await self.publish()
            except Exception:  # noqa: BLE001 - one failed look must not end later ones
                _log.exception("the figures of the machine were not read")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _INTERVAL)

    async def publish(self) -> None:
        """Read and publish everything."""
        self._instruments.set_gauge("build_info", 1.0, (version("sluicegate"),))
        try:
            free = shutil.disk_usage(self._settings.data_dir).free
            self._instruments.set_gauge("data_disk_free_bytes", free)
        except OSError:
            pass  # the folder is on a disk that is not there
        await asyncio.gather(self._publish_ledger(), self._publish_redis())

    async def _publish_ledger(self) -> None:
        is_up = False
        try:
            dead = await asyncio.to_thread(self._ledger.recorder.dead_letters)
            self._instruments.set_gauge("dead_letters", dead, ("usage",))
            is_up = True
        except GatewayError:
            pass  # that is what the gauge says
        self._instruments.set_gauge("dependency_up", float(is_up), ("ledger",))

    async def _publish_redis(self) -> None:
        found = await redis_statistics(self._cache_redis)
        if found is None:
            return
        figures = self._instruments
        figures.set_gauge("cache_entries", found.get("keys", 0), _REDIS)
        figures.set_gauge("cache_bytes", found.get("used_memory", 0), _REDIS)
        figures.set_gauge("cache_capacity_bytes", found.get("maxmemory", 0), _REDIS)
        evicted = found.get("evicted_keys", 0)
        # What a former process counted is in the files of metrics: Redis itself has it all.
        figures.begin_total("cache_evictions_total", evicted, _REDIS)
        figures.set_total("cache_evictions_total", evicted, _REDIS)
