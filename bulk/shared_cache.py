"""Shares answers with the result cache of gateways: looks them up in Redis, and stores new ones."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from backends.installing import install_command
from backends.protocol import Task
from bulk.answers import BulkAnswer, answer_json, vector_bytes
from bulk.errors import BulkStopped
from gateway.cache.entry import CachedResult, decode_entry, encode_entry, pack, unpack
from gateway.cache.key import CacheKey

_log = logging.getLogger(__name__)
# As in the gateway's `KEY_PREFIX`, `_EPOCHS` and `_LINEAGE`; a test holds them equal.
KEY_PREFIX = b"sg:r:"
EPOCHS, LINEAGE = "sg:{config}:epochs", "sg:{config}:lineage"
_TIMEOUT = 5.0
# After a failure the cache is left alone for so long: each attempt may take the timeout.
_PAUSE = 60.0
_OK = 200


class SharedCache(Protocol):
    """Finds and keeps answers that others share; what cannot be reached is a miss."""

    def find(self, keys: Sequence[CacheKey]) -> dict[CacheKey, BulkAnswer]:
        """Return the answers of some keys."""
        ...

    def keep(self, answers: Mapping[CacheKey, BulkAnswer]) -> None:
        """Store answers; failures are left out."""
        ...


class NullCache:
    """A `SharedCache` where none is wanted."""

    def find(self, keys: Sequence[CacheKey]) -> dict[CacheKey, BulkAnswer]:
        """Return nothing."""
        return {}

    def keep(self, answers: Mapping[CacheKey, BulkAnswer]) -> None:
        """Keep nothing."""


class RedisCache:
    """A `SharedCache` in the cache Redis of gateways, under their keys."""

    def __init__(self, client: Any, *, task: Task, ttl: float, epochs: "CacheEpochs") -> None:
        self._client = client
        self._task = task
        self._ttl = ttl
        self._epochs = epochs
        self._off_until = 0.0

    def find(self, keys: Sequence[CacheKey]) -> dict[CacheKey, BulkAnswer]:
        """Return the answers of some keys."""
        if not keys:
            return {}
        values = self._try(self._client.mget, [KEY_PREFIX + key.address for key in keys])
        found = {}
        for key, value in zip(keys, values or [None] * len(keys), strict=True):
            answer = self._read(key, value)
            if answer is not None:
                found[key] = answer
        return found

    def keep(self, answers: Mapping[CacheKey, BulkAnswer]) -> None:
        """Store answers; failures are left out."""
        now = time.time()  # noqa: TID251 - entries travel between machines
        pipeline = self._client.pipeline(transaction=False)
        for key, answer in answers.items():
            if answer.code:
                continue
            entry = CachedResult(
                payload=answer_json(self._task, answer),
                rows=1,
                tokens=answer.tokens,
                input_tokens=answer.tokens,
                stored_at=now,
                expires_at=now + self._ttl,
                truncated_from=answer.truncated_from,
            )
            value = pack(encode_entry(key, entry))
            pipeline.set(KEY_PREFIX + key.address, value, px=int(self._ttl * 1000))
        self._try(pipeline.execute)

    def _read(self, key: CacheKey, value: bytes | None) -> BulkAnswer | None:
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
        except Exception:  # noqa: BLE001 - whatever another wrote there is a miss
            return None
        return BulkAnswer(
            payload=payload,
            tokens=entry.tokens,
            truncated_from=entry.truncated_from,
            is_shared=True,
        )

    def _is_valid(self, entry: CachedResult) -> bool:
        """Return what the gateway's `is_valid` does; `--cache-ttl` is the longest life."""
        now = time.time()  # noqa: TID251 - as above
        if entry.status != _OK or entry.expires_at < now or now - entry.stored_at > self._ttl:
            return False
        return not entry.owner or entry.owner_epoch == self._epochs.number(entry.owner)

    def _try(self, call: Any, *arguments: Any) -> Any:
        from redis.exceptions import RedisError  # noqa: PLC0415 - its extra is optional

        if time.monotonic() < self._off_until:
            return None
        try:
            return call(*arguments)
        except (RedisError, OSError) as error:
            _log.warning("the result cache is not used for a while", extra={"reason": str(error)})
            self._off_until = time.monotonic() + _PAUSE
            return None


def open_redis(url: str) -> Any:
    """Return a client of Redis.

    Raises:
        BulkStopped: redis-py is not installed, or the URL is none.
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
    """Holds what purges have changed in cache keys, at the start of a job."""

    epochs: dict[bytes, bytes]
    lineage: bytes

    def number(self, name: str) -> int:
        """Return how often what is named was purged."""
        return int(self.epochs.get(name.encode(), 0))

    def of(self, model: str, scope: str) -> str:
        """Return the part of cache keys for a model and a scope."""
        numbers = [self.number(name) for name in (f"model:{model}", scope)]
        return f"{numbers[0]}.{numbers[1]}{self.lineage.decode()}"


def read_epochs(client: Any) -> CacheEpochs:
    """Return what purges have changed in cache keys.

    Raises:
        BulkStopped: the state Redis cannot be read, or no gateway has ever used it.
    """
    from redis.exceptions import RedisError  # noqa: PLC0415 - its extra is optional

    try:
        epochs, lineage = client.hgetall(EPOCHS), client.get(LINEAGE)
    except (RedisError, OSError) as error:
        raise BulkStopped(f"--cache-state: the state Redis cannot be read: {error}") from None
    if lineage is None:
        raise BulkStopped(
            "--cache-state: no gateway has used this Redis; name that of the gateways' state "
            "(SLUICEGATE_STATE_URL)"
        )
    return CacheEpochs(epochs, lineage)
