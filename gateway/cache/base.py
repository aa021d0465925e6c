"""Declares the interface of the result cache's remote tier, and a tier that stores nothing."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import msgspec

from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.statistics import RemoteStatistics
from sluicegate.gateway.tasks import log_failure

LookupCallback = Callable[[list[CachedResult | None]], object]


class PendingLookup(msgspec.Struct, eq=False):
    """Holds the keys and the callback of a lookup. After the lookup, the callback is `None`.

    If `claims` is true, the lookup may claim missing keys: other workers then wait for this worker
    to compute the results.
    """

    keys: Sequence[CacheKey]
    on_done: LookupCallback | None
    claims: bool = False

    def end(self, entries: list[CachedResult | None]) -> None:
        """Call the callback, unless it was already called."""
        on_done, self.on_done = self.on_done, None
        if on_done is None:
            return
        try:
            on_done(entries)
        except Exception as bug:  # noqa: BLE001 - other lookups of the read must continue
            log_failure(bug)

    def miss(self) -> None:
        """End the lookup with a miss (`None`) for each key."""
        self.end([None] * len(self.keys))


class RemoteTier(Protocol):
    """Stores entries that all workers share.

    Its methods raise no errors. A key that cannot be read is a miss. Entering the tier's context
    starts the tier. Leaving the context writes queued entries and closes the tier's connections.
    """

    name: str
    """The tier's name in the header `Cache-Status`."""

    def fetch_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, *, claims: bool = False
    ) -> None:
        """Look keys up. Call `on_done` with a list that has an entry or `None` for each key.

        The callback is called once, in a later event-loop iteration, and within the tier's timeout.
        Some entries can have expired.

        If `claims` is true, the lookup may also claim missing keys: other workers then wait for
        this worker to compute the results. `has_claimed` says whether keys were claimed.
        """
        ...

    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        """Return whether earlier lookups have claimed all `keys` for this worker.

        If so, the caller owns the claims from now on, and must release them.
        """
        ...

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """End the claims that lookups made on `keys`, unless a caller has taken them over.

        A caller takes claims over with `has_claimed`.
        """
        ...

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        """Write the entries within some milliseconds. Drop entries that cannot be written."""
        ...

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Claim `keys`: announce to other workers that this worker computes the results.

        A claim replaces a stored result for which `is_current` returns false.

        Returns:
            For each key, whether another worker computes its result or has just stored it. If the
            other worker's claim expires before the result is stored, this worker has to compute
            the result.
        """
        ...

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Extend this worker's claims on `keys` while it still computes their results."""
        ...

    def release(self, keys: Sequence[CacheKey]) -> None:
        """End this worker's claims on `keys`."""
        ...

    def statistics(self) -> RemoteStatistics:
        """Return counts for metrics and tests."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class NullTier:
    """Implements `RemoteTier` without Redis: every key is a miss."""

    name = "none"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    def fetch_nowait(
        self, keys: Sequence[CacheKey], on_done: LookupCallback, *, claims: bool = False
    ) -> None:
        """Call `on_done` with a miss for each key."""
        asyncio.get_running_loop().call_soon(PendingLookup(keys, on_done).miss)

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]], now: float) -> None:
        """Store nothing."""

    def release_unused(self, keys: Sequence[CacheKey]) -> None:
        """Do nothing."""

    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        """Return true, because this worker computes all results itself."""
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
