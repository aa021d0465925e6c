"""Builds cache keys and entries for tests."""

from xxhash import xxh3_128_digest

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
