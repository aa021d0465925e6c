"""Declares the interface of a remote tier of the result cache, and the tier that is off."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, Self

import msgspec

from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey
from gateway.cache.memory_tier import MemoryStatistics
from gateway.tasks import log_failure

LookupCallback = Callable[[list[CachedResult | None]], object]


class PendingLookup(msgspec.Struct, eq=False):
    """The keys of a look-up and its callback: `None` once it was called or cancelled.

    `claims` tells that its caller computes what is not found, and shares that: not one that has
    cancelled it (`is_cancelled`).
    """

    keys: Sequence[CacheKey]
    on_done: LookupCallback | None
    claims: bool = False
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Drop the callback."""
        self.is_cancelled = self.on_done is not None
        self.on_done = None

    def end(self, entries: list[CachedResult | None]) -> None:
        """Call the callback, unless it was called or cancelled."""
        on_done, self.on_done = self.on_done, None
        if on_done is None:
            return
        try:
            on_done(entries)
        except Exception as bug:  # noqa: BLE001 - it must not keep other look-ups of its read waiting
            log_failure(bug)

    def miss(self) -> None:
        """Call the callback with a miss for each key."""
        self.end([None] * len(self.keys))


class RemoteStatistics(msgspec.Struct, kw_only=True):
    """Counts of keys and entries since the start of the remote tier."""

    hits: int = 0
    misses: int = 0
    reads: int = 0
    """Round trips; look-ups of one event-loop iteration share one."""
    read_errors: int = 0
    timeouts: int = 0
    """Look-ups that ended as a miss because Redis did not reply in time."""
    mismatches: int = 0
    """Values that belong to another key: a collision, or a fault."""
    corrupt: int = 0
    claimed: int = 0
    """Of the misses, those that another worker was computing."""
    skipped: int = 0
    """Keys not looked up and entries not written because the breaker was open."""
    written: int = 0
    write_errors: int = 0
    dropped: int = 0
    """Entries not written because the queue was full."""
    queued: int = 0
    breaker: str = "closed"
    breaker_opened: int = 0


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Both tiers."""

    memory: MemoryStatistics
    remote: RemoteStatistics


class RemoteTier(Protocol):
    """Entries that workers share. Nothing here raises: what cannot be reached is a miss, counted.

    Entering starts it, leaving writes what is queued and closes the connection.
    """

    name: str
    """What `Cache-Status` calls the tier."""

    def fetch_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, *, claims: bool = False
    ) -> PendingLookup:
        """Call `on_done` with what was stored under each very key, within the tier's timeout.

        It is called once, in a later event-loop iteration. Entries may have expired. With `claims`,
        keys that have nothing may be claimed by the same call: see `has_claimed`.
        """
        ...

    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        """Take over the claims of look-ups on `keys` if all are claimed; tell whether they were."""
        ...

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """End the claims of look-ups on `keys` that `has_claimed` has not taken over."""
        ...

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        """Write each entry under its key soon, or drop it without an error."""
        ...

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Claim `keys`; return `True` for each that another worker computes or has just answered.

        What another computes is claimed for a short while only, and may yet have to be computed.
        An answer that is not current is replaced by the claim.
        """
        ...

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Tell others that this worker still computes `keys`, which it has claimed."""
        ...

    def release(self, keys: Sequence[CacheKey]) -> None:
        """Tell others that this worker, which has claimed `keys`, computes them no more."""
        ...

    def statistics(self) -> RemoteStatistics:
        """Return counts for metrics and tests."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


async def fetch(
    tier: RemoteTier, keys: Sequence[CacheKey], *, claims: bool = False
) -> list[CachedResult | None]:
    """Return what `tier` has of `keys`; the look-up, and its claims, end with its caller."""
    future: asyncio.Future[list[CachedResult | None]] = asyncio.get_running_loop().create_future()
    lookup = tier.fetch_nowait(keys, partial(_resolve, future), claims=claims)
    try:
        return await future
    except asyncio.CancelledError:
        if claims:
            tier.release_unused(keys)
        raise
    finally:
        lookup.cancel()


def _resolve(
    future: asyncio.Future[list[CachedResult | None]], entries: list[CachedResult | None]
) -> None:
    if not future.done():  # its caller was not cancelled
        future.set_result(entries)


class NullTier:
    """A `RemoteTier` where there is no Redis."""

    name = "none"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def fetch_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, *, claims: bool = False
    ) -> PendingLookup:
        """Call `on_done` with a miss for each key."""
        lookup = PendingLookup(keys, on_done)
        asyncio.get_running_loop().call_soon(lookup.miss)
        return lookup

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        """Keep nothing."""

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """Do nothing."""

    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        """Nobody else computes anything."""
        return True

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
