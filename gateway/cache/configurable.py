"""Applies configuration changes to the result cache's tiers while requests use it."""

import asyncio
from collections.abc import Callable
from typing import Self

from typing_extensions import override

from gateway.cache.base import RemoteTier
from gateway.cache.memory_tier import MemoryTier
from gateway.cache.result_cache import ResultCache
from gateway.config.document import CacheConfig
from gateway.tasks import TaskScope

_STEP_BYTES = 1024 * 1024
"""What the memory tier shrinks by between two event-loop iterations: a millisecond or two."""
_GRACE = 1.0
"""Seconds that a replaced remote tier is kept open for look-ups that began in it."""


class ConfigurableCache(ResultCache):
    """A `ResultCache` made of what the document says, and changed by `configure`.

    Memory keeps its entries as far as they fit. A remote tier with other settings is another one,
    made by `make_remote`; the one before ends what it has begun.
    """

    def __init__(
        self,
        entry: CacheConfig,
        *,
        make_remote: Callable[[CacheConfig], RemoteTier],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(
            memory=MemoryTier(capacity_bytes=_memory_bytes(entry)),
            remote=make_remote(entry),
            clock=clock,
        )
        self._entry = entry
        self._make_remote = make_remote
        self._tasks = TaskScope(drain=0.0)

    @override
    async def __aenter__(self) -> Self:
        await self._remote.__aenter__()
        return self

    @override
    async def __aexit__(self, *exc_info: object) -> None:
        await self._tasks.__aexit__(None, None, None)
        await self._remote.__aexit__(None, None, None)

    def configure(self, entry: CacheConfig) -> None:
        """Apply `entry`: to Redis at once, to memory within some event-loop iterations."""
        before, self._entry = self._entry, entry
        if _memory_bytes(entry) != _memory_bytes(before):
            self._tasks.start(self._resize(_memory_bytes(entry)))
        if _remote_settings(entry) != _remote_settings(before):
            self._tasks.start(self._replace_remote(entry))

    async def _resize(self, target: int) -> None:
        # Until another size is wanted; documents with the same one may follow meanwhile.
        while _memory_bytes(self._entry) == target != self._memory.capacity_bytes:
            least = self._memory.capacity_bytes - _STEP_BYTES
            self._memory.resize(max(target, least), self._clock())
            await asyncio.sleep(0)

    async def _replace_remote(self, entry: CacheConfig) -> None:
        remote = self._make_remote(entry)
        await remote.__aenter__()
        before, self._remote = self._remote, remote
        try:
            await asyncio.sleep(_GRACE)
        finally:
            await before.__aexit__(None, None, None)


def _memory_bytes(entry: CacheConfig) -> int:
    return entry.memory_bytes if entry.memory_enabled else 0


def _remote_settings(entry: CacheConfig) -> tuple[bool, float, float, float]:
    return entry.redis_enabled, entry.redis_timeout, entry.ttl_jitter, entry.lease
