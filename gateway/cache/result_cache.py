"""Implements the result cache. It looks in this worker's memory first, then in a shared tier."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Self

from msgspec.structs import replace

from sluicegate.gateway.cache.base import RemoteTier
from sluicegate.gateway.cache.entry import CachedResult, CacheHit, Validity
from sluicegate.gateway.cache.key import CacheKey, address_of
from sluicegate.gateway.cache.memory_tier import MemoryTier
from sluicegate.gateway.cache.statistics import CacheStatistics
from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.tasks import TaskScope

_STEP_BYTES = 1024 * 1024
"""The memory tier shrinks by this many bytes in an event-loop iteration, which takes one or two
milliseconds."""
_FIRST = (0,)
"""The indexes of the missing keys of a lookup of one key."""
_GRACE = 1.0
"""Seconds for which a replaced remote tier stays open, so that lookups that it began can end."""


class ResultCache:
    """Stores results in two tiers: this worker's memory, and a remote tier that workers share.

    Implements `ResultStore` and `SharedCache`. Entries that are found in the remote tier are copied
    to memory. `make_remote` creates the remote tier. It is called again when the tier's settings
    change. `clock` is the wall clock. Leaving the cache's context waits until the remote tier has
    written its queue.
    """

    def __init__(
        self,
        entry: CacheConfig,
        *,
        make_remote: Callable[[CacheConfig], RemoteTier],
        clock: Callable[[], float],
    ) -> None:
        self._entry = entry
        self._memory = MemoryTier(capacity_bytes=_memory_bytes(entry))
        self.peek: Callable[[CacheKey, float], CachedResult | None] = self._memory.peek
        """Returns a key's entry if it is in memory."""
        self.entry_of: Callable[[CacheKey], CachedResult | None] = self._memory.entry_of
        """Returns a key's entry if it is in memory, even if it has expired. This does not count as
        a read."""
        self.has: Callable[[bytes], bool] = self._memory.has
        """Returns whether an entry with this address is in memory."""
        self._make_remote = make_remote
        self._use(make_remote(entry))
        self._clock = clock
        self._tasks = TaskScope()

    async def __aenter__(self) -> Self:
        await self._remote.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._tasks.__aexit__(None, None, None)
        await self._remote.__aexit__(None, None, None)

    def configure(self, entry: CacheConfig) -> None:
        """Apply the settings in `entry`.

        New settings apply to the remote tier immediately, and to the memory tier within some
        event-loop iterations. The memory tier keeps the entries that fit. A remote tier that is
        replaced completes the lookups and writes that it has begun.
        """
        before, self._entry = self._entry, entry
        if _memory_bytes(entry) != _memory_bytes(before):
            self._tasks.start(self._resize(_memory_bytes(entry)))
        if _remote_settings(entry) != _remote_settings(before):
            self._tasks.start(self._replace_remote(entry))

    async def lookup(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None
    ) -> list[CacheHit | None]:
        """Return what `lookup_nowait` finds. May be cancelled."""
        found: asyncio.Future[list[CacheHit | None]] = asyncio.get_running_loop().create_future()
        self.lookup_nowait(keys, partial(_resolve, found), is_valid)
        return await found

    def lookup_nowait(
        self,
        keys: Sequence[CacheKey],
        on_done: Callable[[list[CacheHit | None]], object],
        is_valid: Validity | None = None,
        *,
        claims: bool = False,
    ) -> None:
        """Look `keys` up in memory, and missing keys in the remote tier.

        An entry for which `is_valid` returns false counts as missing. Call `on_done` with the
        entries in a later event-loop iteration.
        """
        memory, remote = self._memory, self._remote
        found: list[CacheHit | None]
        missing: Sequence[int]
        absent: Sequence[CacheKey]
        if len(keys) == 1 and not memory.has(keys[0][0]):
            memory.misses += 1
            found, missing, absent = [None], _FIRST, keys
        else:
            found, missing = self._in_memory(keys, is_valid)
            if not missing:
                asyncio.get_running_loop().call_soon(on_done, found)
                return
            everything = len(missing) == len(keys)
            absent = keys if everything else [keys[index] for index in missing]

        def fetched(entries: list[CachedResult | None]) -> None:
            try:
                if any(entries):
                    self._add(absent, found, missing, entries, remote.name, is_valid)
            finally:
                on_done(found)

        remote.fetch_nowait(absent, fetched, claims=claims)

    def store(self, key: CacheKey, entry: CachedResult) -> None:
        """Store `entry` in memory now, and in the remote tier soon."""
        self.store_all([(key, entry)])

    def store_all(self, entries: Sequence[tuple[CacheKey, CachedResult]]) -> None:
        """Store each entry in memory now, and in the remote tier soon."""
        now = self._clock()
        self._memory.put_all(entries, now)
        self._remote.store_all(entries, now)

    def claim(
        self, keys: Sequence[CacheKey], is_valid: Validity | None = None
    ) -> Coroutine[Any, Any, list[bool]]:
        """Claim `keys` for this worker; see `SharedCache.claim`."""

        def is_current(entry: CachedResult) -> bool:
            now = self._clock()
            return entry.expires_at > now and (is_valid is None or is_valid(entry, now))

        return self._remote.claim(keys, is_current)

    def statistics(self) -> CacheStatistics:
        """Return the counts of both tiers."""
        return CacheStatistics(memory=self._memory.statistics(), remote=self._remote.statistics())

    def _in_memory(
        self, keys: Sequence[CacheKey], is_valid: Validity | None
    ) -> tuple[list[CacheHit | None], list[int]]:
        """Return the valid entries of `keys` in memory, and the indexes of the missing keys."""
        memory = self._memory
        found: list[CacheHit | None] = [None] * len(keys)
        if not any(map(memory.has, map(address_of, keys))):
            memory.misses += len(keys)
            return found, list(range(len(keys)))
        now, peek = self._clock(), memory.peek
        missing: list[int] = []
        for index, key in enumerate(keys):
            entry = peek(key, now)
            if entry is None or not (is_valid is None or is_valid(entry, now)):
                missing.append(index)
            else:
                found[index] = CacheHit(entry=entry, tier="memory")
        return found, missing

    def _add(
        self,
        keys: Sequence[CacheKey],
        found: list[CacheHit | None],
        indexes: Sequence[int],
        fetched: Sequence[CachedResult | None],
        tier: str,
        is_valid: Validity | None,
    ) -> None:
        """Copy the entries that `tier` returned for `keys` to memory, and valid ones to `found`."""
        now = self._clock()
        for key, index, entry in zip(keys, indexes, fetched, strict=True):
            if entry is not None and entry.expires_at > now:
                self._memory.put(key, entry, now)
                if is_valid is None or is_valid(entry, now):
                    found[index] = CacheHit(entry=entry, tier=tier)

    def _use(self, remote: RemoteTier) -> None:
        self._remote = remote
        # These would only pass the call on. See `RemoteTier`.
        self.has_claimed, self.release_unused = remote.has_claimed, remote.release_unused
        self.renew, self.release = remote.renew, remote.release

    async def _resize(self, target: int) -> None:
        # The loop stops if a newer configuration document sets a different capacity.
        while _memory_bytes(self._entry) == target != self._memory.capacity_bytes:
            least = self._memory.capacity_bytes - _STEP_BYTES
            self._memory.resize(max(target, least), self._clock())
            await asyncio.sleep(0)

    async def _replace_remote(self, entry: CacheConfig) -> None:
        remote = self._make_remote(entry)
        await remote.__aenter__()
        before = self._remote
        self._use(remote)
        try:
            await asyncio.sleep(_GRACE)
        finally:
            await before.__aexit__(None, None, None)


def _resolve(future: asyncio.Future[list[CacheHit | None]], found: list[CacheHit | None]) -> None:
    if not future.done():  # the caller was not cancelled
        future.set_result(found)


def _memory_bytes(entry: CacheConfig) -> int:
    return entry.memory_bytes if entry.memory_enabled else 0


def _remote_settings(entry: CacheConfig) -> CacheConfig:
    """Return `entry` with constants for the settings that the remote tier does not use."""
    return replace(entry, memory_bytes=0, memory_enabled=False, refusal_ttl=0.0, refreshes=0)
