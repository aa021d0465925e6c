"""A remote tier that is switched off: it keeps nothing, and costs next to nothing."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from gateway.cache.base import RemoteStatistics
from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey


class NullTier:
    """A `RemoteTier` where there is no Redis."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def fetch(self, keys: Sequence[CacheKey]) -> list[CachedResult | None]:
        """Return a miss for each key."""
        return [None] * len(keys)

    def ask(
        self, keys: Sequence[CacheKey], told: Callable[[list[CachedResult | None]], object]
    ) -> None:
        """Tell of a miss for each key."""
        misses: list[CachedResult | None] = [None] * len(keys)
        asyncio.get_running_loop().call_soon(told, misses)

    def store(self, key: CacheKey, entry: CachedResult, now: float) -> None:
        """Keep nothing."""

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Tell nobody."""
        return [False] * len(keys)

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Tell nobody."""

    def release(self, keys: Sequence[CacheKey]) -> None:
        """Tell nobody."""

    def statistics(self) -> RemoteStatistics:
        """Return zeros."""
        return RemoteStatistics()
