"""Decodes values that were read from Redis, and counts entries, claims and damaged values."""

from collections.abc import Sequence

from sluicegate.gateway.cache.claims import Claims
from sluicegate.gateway.cache.entry import CLAIM, CachedResult, decode_entry
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.statistics import RemoteStatistics


class ValueReader:
    """Decodes the values of cache keys. Skips claims, damaged values and values of other keys."""

    def __init__(self, *, claims: Claims, counts: RemoteStatistics) -> None:
        self._claims = claims
        self._counts = counts

    def entries(
        self, keys: Sequence[CacheKey], values: Sequence[bytes | None]
    ) -> list[CachedResult | None]:
        """Return the entry of each key. `values` must not be compressed."""
        if any(values) or b"" in values:
            return [self._entry(key, value) for key, value in zip(keys, values, strict=True)]
        self._counts.misses += len(keys)
        return [None] * len(keys)

    def _entry(self, key: CacheKey, value: bytes | None) -> CachedResult | None:
        counts = self._counts
        if value is None:
            counts.misses += 1
            return None
        if value[:1] == CLAIM and self._claims.read(key, value):
            counts.misses += 1
            return None
        try:
            entry = decode_entry(key, value)
        except Exception:  # noqa: BLE001 - the read's other values must be returned
            counts.corrupt += 1
            return None
        if entry is None:
            counts.mismatches += 1
        else:
            counts.hits += 1
        return entry
