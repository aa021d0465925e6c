"""Holds a look-up that waits for the remote tier, and its callback."""

import asyncio
from collections.abc import Callable, Sequence

from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey

LookupCallback = Callable[[list[CachedResult | None]], object]


class PendingLookup:
    """The keys of a look-up and its callback: `None` once it was called or cancelled."""

    __slots__ = ("keys", "on_done", "timer")

    def __init__(self, keys: Sequence[CacheKey], on_done: LookupCallback) -> None:
        self.keys = keys
        self.on_done: LookupCallback | None = on_done
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Drop the callback and its timer."""
        self.on_done = None
        if self.timer is not None:
            self.timer.cancel()

    def miss(self) -> None:
        """Call the callback with a miss for each key, unless it was called or cancelled."""
        on_done = self.on_done
        if on_done is not None:
            self.cancel()
            on_done([None] * len(self.keys))


def resolve(
    future: asyncio.Future[list[CachedResult | None]], entries: list[CachedResult | None]
) -> None:
    """Set the result of `future`, unless its caller was cancelled."""
    if not future.done():
        future.set_result(entries)
