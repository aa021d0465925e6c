"""Builds cache keys and entries for tests, and looks keys up."""

import asyncio
from collections.abc import Sequence
from typing import Any

from xxhash import xxh3_128_digest

from sluicegate.gateway.cache.base import RemoteTier
from sluicegate.gateway.cache.entry import CachedResult
from sluicegate.gateway.cache.key import CacheKey, KeyParts
from sluicegate.wire.protocol import Task, Variant

_PARTS: dict[str, Any] = {
    "scope": "tenant:acme",
    "epoch": "0.0",
    "model": "sentiment",
    "variant": Variant("9f2c51d0a7be", "fp32", "classify", 1),
    "task": Task.CLASSIFY,
    "parameters": b"\x82\xa5top_k\x01",
}
KEY_PARTS = KeyParts(**dict.fromkeys(KeyParts.__struct_fields__, "") | _PARTS)
"""Parts of a key. Parts that were added later are empty."""


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
    """Return the entries of `keys` in `tier`."""
    found: asyncio.Future[list[CachedResult | None]] = asyncio.get_running_loop().create_future()

    def on_done(entries: list[CachedResult | None]) -> None:
        if not found.done():  # the caller was not cancelled
            found.set_result(entries)

    tier.fetch_nowait(keys, on_done, claims=claims)
    return await found
