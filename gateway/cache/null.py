"""Implements a remote tier that is switched off: every look-up is a miss."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from gateway.cache.base import RemoteStatistics
from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey
from gateway.cache.pending_lookup import LookupCallback, PendingLookup


class NullTier:
    """A `RemoteTier` where there is no Redis."""

    name = "none"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def fetch(self, keys: Sequence[CacheKey]) -> list[CachedResult | None]:
        """Return a miss for each key."""
        return [None] * len(keys)

    def fetch_nowait(self, keys: Sequence[CacheKey], on_done: LookupCallback) -> PendingLookup:
        """Call `on_done` with a miss for each key."""
        lookup = PendingLookup(keys, on_done)
        asyncio.get_running_loop().call_soon(lookup.miss)
        return lookup

    def store(self, key: CacheKey, entry: CachedResult, now: float) -> None:
        """Keep nothing."""

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Do nothing."""
        return [False] * len(keys)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Do nothing."""

    def release(self, keys: Sequence[CacheKey]) -> None:
        """Do nothing."""

    def statistics(self) -> RemoteStatistics:
        """Return zeros."""
        return RemoteStatistics()
