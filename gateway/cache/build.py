"""Builds the result cache as the configuration document describes it."""

import secrets
from collections.abc import Callable

from sluicegate.gateway.cache.base import NullTier, RemoteTier
from sluicegate.gateway.cache.redis_tier import RedisTier
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.redis.connect import open_client
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive

_CONNECTION_TIMEOUT = 0.1
"""The minimum timeout of calls to Redis, in seconds. Lookups have a shorter timeout of their
own."""


def build_cache(
    entry: CacheConfig,
    *,
    url: str,
    clock: Callable[[], float],
    monotonic: Callable[[], float],
    random: Callable[[], float],
    keepalive: TcpKeepalive = DEFAULT_KEEPALIVE,
) -> ResultCache:
    """Return a cache with the tiers that `entry` enables. `url` is the URL of the cache's Redis.

    `clock` is the wall clock. `random` returns numbers from 0 to 1.
    """
    # If the remote tier is replaced, the new tier gets the same claimant name, so that it
    # recognizes the claims of the old tier as this worker's own.
    claimant = secrets.token_bytes(8)

    def make_remote(entry: CacheConfig) -> RemoteTier:
        if not entry.redis_enabled:
            return NullTier()
        # The timeout of calls is longer than the timeout of lookups, because even a late response
        # shows how slow Redis is.
        timeout = max(_CONNECTION_TIMEOUT, 2 * entry.redis_timeout)
        reads, writes = (
            open_client(url, timeout=timeout, slow=entry.redis_timeout, keepalive=keepalive)
            for _ in range(2)
        )
        return RedisTier(
            reads=reads,
            writes=writes,
            timeout=entry.redis_timeout,
            ttl_jitter=entry.ttl_jitter,
            lease=entry.lease,
            monotonic=monotonic,
            random=random,
            claimant=claimant,
        )

    return ResultCache(entry, make_remote=make_remote, clock=clock)
