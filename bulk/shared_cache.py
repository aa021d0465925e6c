"""Shares the result cache of gateways: looks up results in Redis, and stores new ones."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.results import StoredResult, result_json, vector_bytes
from sluicegate.gateway.cache.entry import CachedResult, decode_entry, encode_entry, pack, unpack
from sluicegate.gateway.cache.key import CacheKey, epoch_of
from sluicegate.wire.installing import install_command
from sluicegate.wire.protocol import Task

_log = logging.getLogger(__name__)
# Equal to the gateway's `KEY_PREFIX`, `_EPOCHS` and `_PURGE_HISTORY`; a test checks this.
KEY_PREFIX = b"sg:r:"
EPOCHS, PURGE_HISTORY = "sg:{config}:epochs", "sg:{config}:lineage"
_TIMEOUT = 5.0
# Seconds without attempts after a failure, because each attempt may take the timeout.
_PAUSE = 60.0
_OK = 200


class SharedCache(Protocol):
    """Finds and stores shared results. Raises nothing: if the cache fails, keys are misses."""

    def find(self, keys: Sequence[CacheKey]) -> dict[CacheKey, StoredResult]:
        """Return the cached results of `keys`."""
        ...

    def keep(self, results: Mapping[CacheKey, StoredResult]) -> None:
        """Store results, but not failures."""
        ...


class NullCache:
    """Is a `SharedCache` that is always empty."""

    def find(self, keys: Sequence[CacheKey]) -> dict[CacheKey, StoredResult]:
        """Return no results."""
        return {}

    def keep(self, results: Mapping[CacheKey, StoredResult]) -> None:
        """Do nothing."""


class RedisCache:
    """Implements `SharedCache` with the Redis in which gateways cache results."""

    def __init__(self, client: Any, *, task: Task, ttl: float, epochs: "CacheEpochs") -> None:
        self._client = client
        self._task = task
        self._ttl = ttl
        self._epochs = epochs
        self._off_until = 0.0

    def find(self, keys: Sequence[CacheKey]) -> dict[CacheKey, StoredResult]:
        """Return the cached results of `keys`."""
        if not keys:
            return {}
        values = self._try(self._client.mget, [KEY_PREFIX + key.address for key in keys])
        found = {}
        for key, value in zip(keys, values or [None] * len(keys), strict=True):
            result = self._read(key, value)
            if result is not None:
                found[key] = result
        return found

    def keep(self, results: Mapping[CacheKey, StoredResult]) -> None:
        """Store results, but not failures."""
        now = time.time()  # noqa: TID251 - machines share entries, so use wall-clock time
        pipeline = self._client.pipeline(transaction=False)
        for key, result in results.items():
            if result.code:
                continue
            entry = CachedResult(
                payload=result_json(self._task, result),
                rows=1,
                tokens=result.tokens,
                input_tokens=result.tokens,
                stored_at=now,
                expires_at=now + self._ttl,
                truncated_from=result.truncated_from,
            )
            value = pack(encode_entry(key, entry))
            pipeline.set(KEY_PREFIX + key.address, value, px=int(self._ttl * 1000))
        self._try(pipeline.execute)

    def _read(self, key: CacheKey, value: bytes | None) -> StoredResult | None:
        plain = unpack(value)
        if plain is None:
            return None
        try:
            entry = decode_entry(key, plain)
            if entry is None or not self._is_valid(entry):
                return None
            payload = entry.payload
            if self._task is Task.EMBED:
                payload = vector_bytes(msgspec.json.decode(payload)["embedding"])
        except Exception:  # noqa: BLE001 - an entry that cannot be read is a miss
            return None
        return StoredResult(
            payload=payload,
            tokens=entry.tokens,
            truncated_from=entry.truncated_from,
            is_shared=True,
        )

    def _is_valid(self, entry: CachedResult) -> bool:
        """Return whether an entry is valid, like in the gateway, and younger than `--cache-ttl`."""
        now = time.time()  # noqa: TID251 - as above
        if entry.status != _OK or entry.expires_at < now or now - entry.stored_at > self._ttl:
            return False
        return not entry.owner or entry.owner_epoch == self._epochs.epochs.get(entry.owner, 0)

    def _try(self, call: Any, *arguments: Any) -> Any:
        from redis.exceptions import RedisError  # noqa: PLC0415 - its extra is optional

        if time.monotonic() < self._off_until:
            return None
        try:
            return call(*arguments)
        except (RedisError, OSError) as error:
            _log.warning("the result cache failed; pausing its use", extra={"reason": str(error)})
            self._off_until = time.monotonic() + _PAUSE
            return None


def open_redis(url: str) -> Any:
    """Return a Redis client.

    Raises:
        BulkStopped: redis-py is not installed, or the URL is invalid.
    """
    try:
        from redis import Redis  # noqa: PLC0415 - its extra is optional
    except ModuleNotFoundError:
        raise BulkStopped(f"redis is not installed; run {install_command('bulk')}") from None
    try:
        return Redis.from_url(url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT)
    except ValueError as error:
        raise BulkStopped(f"--cache: {error}") from None


class CacheEpochs(msgspec.Struct, frozen=True):
    """Holds the cache epochs at the start of a job.

    An epoch changes with each purge, and is part of the cache keys. So a purge makes older results
    unreachable.
    """

    epochs: Mapping[str, int]
    purge_history: str

    def of(self, model: str, scope: str) -> str:
        """Return the part of cache keys for the epochs of a model and a scope."""
        return epoch_of(model, scope, self.epochs, self.purge_history)


def read_epochs(client: Any) -> CacheEpochs:
    """Read the cache epochs from the Redis with the gateways' state.

    Raises:
        BulkStopped: this Redis cannot be read, or no gateway has used it.
    """
    from redis.exceptions import RedisError  # noqa: PLC0415 - its extra is optional

    try:
        epochs, purge_history = client.hgetall(EPOCHS), client.get(PURGE_HISTORY)
    except (RedisError, OSError) as error:
        raise BulkStopped(f"--cache-state: cannot read the state Redis: {error}") from None
    if purge_history is None:
        raise BulkStopped(
            "--cache-state: no gateway has used this Redis; give the URL of the gateways' state "
            "Redis (SLUICEGATE_STATE_URL)"
        )
    return CacheEpochs(
        {name.decode(): int(number) for name, number in epochs.items()}, purge_history.decode()
    )
