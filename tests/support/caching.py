"""Builds cache keys and entries for tests, and looks keys up."""

import asyncio
from collections.abc import Sequence

from xxhash import xxh3_128_digest

from gateway.cache.base import RemoteTier
from gateway.cache.entry import CachedResult
from gateway.cache.key import CacheKey


def cache_key(name: str | int) -> CacheKey:
    """Return a key of its own for each name."""
    address = xxh3_128_digest(str(name).encode())
    return CacheKey(address, address[::-1])


def entry(text: str | int = "answer", *, at: float = 1_000.0, ttl: float = 3_600.0) -> CachedResult:
    """Return an entry whose payload is `text`."""
    return CachedResult(
        payload=str(text).encode(), rows=1, tokens=7, stored_at=at, expires_at=at + ttl
    )


async def fetch(
    tier: RemoteTier, keys: Sequence[CacheKey], *, claims: bool = False
) -> list[CachedResult | None]:
    """Return the entries of `keys` in `tier`. A look-up ends with its caller."""
    found: asyncio.Future[list[CachedResult | None]] = asyncio.get_running_loop().create_future()
    lookup = tier.fetch_nowait(keys, found.set_result, claims=claims)
    try:
        return await found
    finally:
        lookup.cancel()
