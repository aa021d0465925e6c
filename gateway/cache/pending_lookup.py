"""What a caller of a remote tier waits for, and how it is told."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey


class PendingLookup:
    """A caller's keys, and who is told; nobody any more when it was, or has gone."""

    __slots__ = ("keys", "timer", "told")

    def __init__(
        self, keys: Sequence[CacheKey], told: Callable[[list[CachedResult | None]], object]
    ) -> None:
        self.keys = keys
        self.told: Callable[[list[CachedResult | None]], object] | None = told
        self.timer: asyncio.TimerHandle | None = None

    def forget(self) -> None:
        """Tell nobody."""
        self.told = None
        if self.timer is not None:
            self.timer.cancel()


def resolve(
    future: asyncio.Future[list[CachedResult | None]], entries: list[CachedResult | None]
) -> None:
    """Tell a caller that waits for `future`, unless it has gone."""
    if not future.done():
        future.set_result(entries)
