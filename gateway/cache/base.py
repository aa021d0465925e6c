"""What the rest of the gateway may ask of a result cache, and what a remote tier promises it."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

import msgspec

from gateway.cache.entry import CachedResult, CacheHit, Validity
from gateway.cache.key import CacheKey
from gateway.cache.memory_tier import MemoryStatistics


class RemoteStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What happened since the start to keys asked of the remote tier and entries given to it."""

    hits: int = 0
    misses: int = 0
    reads: int = 0
    """Round trips; keys asked for in one tick share one."""
    read_errors: int = 0
    timeouts: int = 0
    """Look-ups that were told `miss` because the answer took too long."""
    mismatches: int = 0
    """Values that belong to another key: a collision, or a fault."""
    corrupt: int = 0
    claimed: int = 0
    """Of the misses, those that another worker was computing."""
    skipped: int = 0
    """Keys not asked for, entries not written, because the breaker was open."""
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

    async def fetch(self, keys: Sequence[CacheKey]) -> list[CachedResult | None]:
        """Return what is known of each key, within the tier's timeout; may be out of date."""
        ...

    def ask(
        self, keys: Sequence[CacheKey], told: Callable[[list[CachedResult | None]], object]
    ) -> None:
        """Call `told` with what `fetch` would return: once, and not before a later turn."""
        ...

    def store(self, key: CacheKey, entry: CachedResult, now: float) -> None:
        """Write `entry` soon, or drop it; tells nobody."""
        ...

    async def claim(
        self, keys: Sequence[CacheKey], is_current: Callable[[CachedResult], bool]
    ) -> list[bool]:
        """Tell others that this worker computes `keys`; say which another does, or just has.

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


class Cache(Protocol):
    """Answers by key. Nothing raises: a cache that is down is a miss, a store that fails is lost.

    An entry is returned only to the very key it was stored under, and never after `expires_at`.
    """

    def peek(self, key: CacheKey, now: float) -> CachedResult | None:
        """Return the entry if this worker's memory has it; `now` is the wall clock's."""
        ...

    async def lookup(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None
    ) -> list[CacheHit | None]:
        """Return what memory, then Redis, have of `keys`. May be cancelled at any time.

        What memory has and is not valid is asked of Redis, too; what Redis has may not be valid.
        """
        ...

    def seek(
        self,
        keys: Sequence[CacheKey],
        told: Callable[[list[CacheHit | None]], object],
        is_valid: Validity | None = None,
    ) -> None:
        """Call `told` with what `lookup` would return: once, and not before a later turn.

        For callers without a task, which costs more than a hit in Redis does otherwise.
        """
        ...

    def store(self, key: CacheKey, entry: CachedResult) -> None:
        """Keep `entry`: in memory now, in Redis soon."""
        ...

    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        """Tell other workers that this one computes `keys`; say which another one already does.

        A stored answer that is not valid is replaced by the claim.
        """
        ...

    def renew(self, keys: Sequence[CacheKey]) -> None:
        """Tell other workers that this one still computes `keys`, which it has claimed."""
        ...

    def release(self, keys: Sequence[CacheKey]) -> None:
        """Tell other workers that this one, which has claimed `keys`, computes them no more."""
        ...

    def statistics(self) -> CacheStatistics:
        """Return counts for metrics and tests."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...
