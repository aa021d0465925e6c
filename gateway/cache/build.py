"""Builds the result cache that the configuration document describes."""

from collections.abc import Callable

from gateway.cache.base import Cache, RemoteTier
from gateway.cache.memory_tier import MemoryTier
from gateway.cache.null import NullCache, NullTier
from gateway.cache.redis_pipes import open_pipe
from gateway.cache.redis_tier import RedisTier
from gateway.cache.result_cache import ResultCache
from gateway.config.document import CacheEntry
from gateway.tcp_keepalive import SHIPPED, TcpKeepalive

_PATIENCE = 0.1
"""Seconds until a connection to Redis that says nothing is given up; look-ups wait less."""


def build_cache(
    entry: CacheEntry,
    *,
    url: str,
    clock: Callable[[], float],
    monotonic: Callable[[], float],
    random: Callable[[], float],
    keepalive: TcpKeepalive = SHIPPED,
) -> Cache:
    """Return a cache of the tiers that `entry` switches on; Redis is at `url`.

    `clock` is the wall clock, `random` a source of numbers from 0 to 1.
    """
    if not entry.memory_enabled and not entry.redis_enabled:
        return NullCache()
    remote: RemoteTier = NullTier()
    if entry.redis_enabled:
        # A late answer tells that Redis is slow; a connection closed too soon, only that it was.
        patience = max(_PATIENCE, 2 * entry.redis_timeout)
        reads, writes = (
            open_pipe(url, timeout=patience, slow=entry.redis_timeout, keepalive=keepalive)
            for _ in range(2)
        )
        remote = RedisTier(
            reads=reads,
            writes=writes,
            timeout=entry.redis_timeout,
            ttl_jitter=entry.ttl_jitter,
            lease=entry.lease,
            monotonic=monotonic,
            random=random,
        )
    memory = MemoryTier(capacity_bytes=entry.memory_bytes if entry.memory_enabled else 0)
    return ResultCache(memory=memory, remote=remote, clock=clock)
