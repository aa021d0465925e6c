"""Builds the result cache that the configuration document describes."""

import secrets
from collections.abc import Callable

from gateway.cache.base import NullTier, RemoteTier
from gateway.cache.redis_tier import RedisTier
from gateway.cache.result_cache import ResultCache
from gateway.config.document import CacheConfig
from gateway.redis.connect import open_client
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from gateway.tasks import CallbackBatch

_CONNECTION_TIMEOUT = 0.1
"""Seconds until a connection to Redis that says nothing is given up; look-ups wait less."""


def build_cache(
    entry: CacheConfig,
    *,
    url: str,
    clock: Callable[[], float],
    monotonic: Callable[[], float],
    random: Callable[[], float],
    keepalive: TcpKeepalive = DEFAULT_KEEPALIVE,
    batch: CallbackBatch | None = None,
) -> ResultCache:
    """Return a cache of the tiers that `entry` switches on; Redis is at `url`.

    What was found by one read of Redis is told within `batch`.

    `clock` is the wall clock, `random` a source of numbers from 0 to 1.
    """
    # What this worker has claimed by one tier is its own in the next.
    claimant = secrets.token_bytes(8)

    def make_remote(entry: CacheConfig) -> RemoteTier:
        if not entry.redis_enabled:
            return NullTier()
        # A late answer tells that Redis is slow; a connection closed too soon, only that it was.
        timeout = max(_CONNECTION_TIMEOUT, 2 * entry.redis_timeout)
        reads, writes = (
            open_client(url, timeout=timeout, slow=entry.redis_timeout, keepalive=keepalive)
            for _ in range(2)
        )
        tier = RedisTier(
            reads=reads,
            writes=writes,
            timeout=entry.redis_timeout,
            ttl_jitter=entry.ttl_jitter,
            lease=entry.lease,
            monotonic=monotonic,
            random=random,
            claimant=claimant,
        )
        if batch is not None:
            tier.batch = batch
        return tier

    return ResultCache(entry, make_remote=make_remote, clock=clock)
