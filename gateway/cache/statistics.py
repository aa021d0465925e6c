"""Holds the statistics of the cache's tiers, and declares their metrics."""

from typing import Annotated, Final

import msgspec

from sluicegate.gateway.redis.circuit_breaker import BREAKER_OPEN, BREAKER_OPENINGS
from sluicegate.wire.metric_declaration import counter, gauge

LOOKUPS: Final = counter(
    "sluicegate_cache_lookups_total",
    "Keys looked up in a tier (`memory`, `redis`). `result`: `hit`, `miss`, `error`, `timeout` "
    "(Redis was late, so the key counted as a miss), `skipped` (the circuit breaker was open).",
    *("tier", "result"),
)
ENTRIES: Final = gauge(
    "sluicegate_cache_entries", "Entries in a tier; for Redis, its keys.", "tier"
)
BYTES: Final = gauge("sluicegate_cache_bytes", "Bytes that a tier uses.", "tier")
CAPACITY: Final = gauge("sluicegate_cache_capacity_bytes", "Bytes that a tier may use.", "tier")
EVICTIONS: Final = counter(
    "sluicegate_cache_evictions_total", "Entries evicted to make room.", "tier"
)
REJECTED: Final = counter(
    "sluicegate_cache_rejected_entries_total",
    "Entries not admitted to memory because they were used too rarely or are too large.",
    "tier",
)
MISMATCHES: Final = counter(
    "sluicegate_cache_mismatches_total",
    "Values that belong to another key: a hash collision, or a fault.",
    "tier",
)
CORRUPT: Final = counter(
    "sluicegate_cache_corrupt_entries_total", "Values that could not be decoded.", "tier"
)
READS: Final = counter(
    "sluicegate_cache_reads_total",
    "Round trips for lookups; one round trip looks up many keys.",
    "tier",
)
CLAIMED: Final = counter(
    "sluicegate_cache_claimed_lookups_total",
    "Misses of keys that another worker was computing.",
    "tier",
)
WRITES: Final = counter(
    "sluicegate_cache_writes_total",
    "Entries stored. `result`: `written`, `error`, `dropped` (the queue was full).",
    *("tier", "result"),
)
QUEUED: Final = gauge("sluicegate_cache_queued_writes", "Entries that wait to be written.", "tier")


class MemoryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the present sizes, and counts since the start."""

    entries: Annotated[int, ENTRIES("memory")]
    used_bytes: Annotated[int, BYTES("memory")]
    capacity_bytes: Annotated[int, CAPACITY("memory")]
    hits: Annotated[int, LOOKUPS("memory", "hit")]
    misses: Annotated[int, LOOKUPS("memory", "miss")]
    mismatches: Annotated[int, MISMATCHES("memory")]
    """Reads that found an entry with another tag, because of a hash collision or an error."""
    evicted: Annotated[int, EVICTIONS("memory")]
    refused: Annotated[int, REJECTED("memory")]
    """Entries that were not admitted, because they were too rare or too large."""


class RemoteStatistics(msgspec.Struct, kw_only=True):
    """Counts keys and entries since the remote tier started."""

    hits: Annotated[int, LOOKUPS("redis", "hit")] = 0
    misses: Annotated[int, LOOKUPS("redis", "miss")] = 0
    reads: Annotated[int, READS("redis")] = 0
    """Round trips to Redis. All lookups of an event-loop iteration share a round trip."""
    read_errors: Annotated[int, LOOKUPS("redis", "error")] = 0
    timeouts: Annotated[int, LOOKUPS("redis", "timeout")] = 0
    """Lookups that ended as a miss because Redis did not respond in time."""
    mismatches: Annotated[int, MISMATCHES("redis")] = 0
    """Values that belong to another key, because of a hash collision or an error."""
    corrupt: Annotated[int, CORRUPT("redis")] = 0
    claimed: Annotated[int, CLAIMED("redis")] = 0
    """Misses of keys whose results another worker was computing."""
    skipped: Annotated[int, LOOKUPS("redis", "skipped")] = 0
    """Keys that were not looked up, and entries that were not written, because the circuit breaker
    was open."""
    written: Annotated[int, WRITES("redis", "written")] = 0
    write_errors: Annotated[int, WRITES("redis", "error")] = 0
    dropped: Annotated[int, WRITES("redis", "dropped")] = 0
    """Entries that were not written because the queue was full."""
    queued: Annotated[int, QUEUED("redis")] = 0
    breaker: Annotated[str, BREAKER_OPEN("cache_redis")] = "closed"
    breaker_opened: Annotated[int, BREAKER_OPENINGS("cache_redis")] = 0


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the statistics of both tiers."""

    memory: MemoryStatistics
    remote: RemoteStatistics
