"""Implements the result cache: this worker's memory, then the Redis that workers share."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

from gateway.cache.base import CacheStatistics, RemoteTier
from gateway.cache.entry import CachedResult, CacheHit, Validity
from gateway.cache.key import CacheKey
from gateway.cache.memory_tier import MemoryTier

__all__ = ["CacheHit", "ResultCache"]


class ResultCache:
    """The `ResultStore` and `SharedCache` of inference, in two tiers.

    Entries that are found in Redis are copied to memory.

    `clock` is the wall clock. Entering enters `remote`; leaving it waits until the remote tier has
    written what it was given.
    """

    def __init__(
        self, *, memory: MemoryTier, remote: RemoteTier, clock: Callable[[], float]
    ) -> None:
        self._memory = memory
        self.peek: Callable[[CacheKey, float], CachedResult | None] = memory.peek
        """Returns a key's entry if memory has it."""
        self._remote = remote
        self._clock = clock
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._remote)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def lookup(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None
    ) -> list[CacheHit | None]:
        """Return what memory and, for the rest, Redis have of `keys`."""
        found, missing = self._in_memory(keys, is_valid)
        if missing:
            fetched = await self._remote.fetch([keys[index] for index in missing])
            self._add(keys, found, missing, fetched)
        return found

    def lookup_nowait(
        self,
        keys: Sequence[CacheKey],
        on_done: Callable[[list[CacheHit | None]], object],
        is_valid: Validity | None = None,
    ) -> None:
        """Call `on_done` later with what memory and, for the rest, Redis have of `keys`."""
        found, missing = self._in_memory(keys, is_valid)
        if not missing:
            asyncio.get_running_loop().call_soon(on_done, found)
            return

        def fetched(entries: list[CachedResult | None]) -> None:
            try:
                self._add(keys, found, missing, entries)
            finally:
                on_done(found)

        self._remote.fetch_nowait([keys[index] for index in missing], fetched)

    def store(self, key: CacheKey, entry: CachedResult) -> None:
        """Keep `entry` in memory now, and in Redis soon."""
        now = self._clock()
        if entry.expires_at <= now:
            return
        self._memory.put(key, entry, now)
        self._remote.store(key, entry, now)

    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        """Claim `keys` for this worker; see `SharedCache.claim`."""

        def is_current(entry: CachedResult) -> bool:
            now = self._clock()
            return entry.expires_at > now and (is_valid is None or is_valid(entry, now))

        return await self._remote.claim(keys, is_current)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Extend the claims on `keys`."""
        self._remote.renew(keys)

    def release(self, keys: Sequence[CacheKey]) -> None:
        """End the claims on `keys`."""
        self._remote.release(keys)

    def statistics(self) -> CacheStatistics:
        """Return the counts of both tiers."""
        return CacheStatistics(memory=self._memory.statistics(), remote=self._remote.statistics())

    def _in_memory(
        self, keys: Sequence[CacheKey], is_valid: Validity | None
    ) -> tuple[list[CacheHit | None], list[int]]:
        """Return what memory has of `keys` that is valid, and the places of the rest."""
        now = self._clock()
        found: list[CacheHit | None] = []
        missing: list[int] = []
        for index, key in enumerate(keys):
            entry = self._memory.peek(key, now)
            if entry is None or not (is_valid is None or is_valid(entry, now)):
                missing.append(index)
                found.append(None)
            else:
                found.append(CacheHit(entry=entry, tier="memory"))
        return found, missing

    def _add(
        self,
        keys: Sequence[CacheKey],
        found: list[CacheHit | None],
        missing: Sequence[int],
        fetched: Sequence[CachedResult | None],
    ) -> None:
        """Put what was fetched for the `missing` places into `found`, and into memory."""
        now = self._clock()
        for index, entry in zip(missing, fetched, strict=True):
            if entry is not None and entry.expires_at > now:
                self._memory.put(keys[index], entry, now)
                found[index] = CacheHit(entry=entry, tier="redis")
