"""The result cache that a bulk job shares: what a gateway would not give, it does not take."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from sluicegate.bulk.shared_cache import KEY_PREFIX, CacheEpochs, RedisCache
from sluicegate.gateway.cache.entry import CachedResult, encode_entry, pack
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.wire.protocol import Task

pytest.importorskip("redis", reason="redis-py is not installed")
_KEY = CacheKey(b"a" * 16, b"t" * 16)
_EPOCHS = CacheEpochs({"tenant:acme": 2}, "x")


class _Client:
    """Has one entry, or fails."""

    def __init__(self, **fields: Any) -> None:
        now = time.time()  # noqa: TID251 - entries travel between machines
        stored: dict[str, Any] = {"stored_at": now, "expires_at": now + 900, **fields}
        entry = CachedResult(payload=b"{}", rows=1, tokens=1, **stored)
        self.values = {KEY_PREFIX + _KEY.address: pack(encode_entry(_KEY, entry))}
        self.asked = 0
        self.fails = False

    def mget(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked += 1
        if self.fails:
            raise TimeoutError
        return [self.values.get(key) for key in keys]


def _cache(client: _Client) -> RedisCache:
    return RedisCache(client, task=Task.CLASSIFY, ttl=60, epochs=_EPOCHS)


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({}, True),
        ({"owner": "tenant:acme", "owner_epoch": 2}, True),
        ({"owner": "tenant:acme", "owner_epoch": 1}, False),
        ({"stored_at": 5.0}, False),
        ({"status": 422}, False),
    ],
)
def test_answers_that_are_too_old_or_purged_are_not_taken(
    fields: dict[str, Any], *, is_taken: bool
) -> None:
    assert list(_cache(_Client(**fields)).find([_KEY])) == ([_KEY] if is_taken else [])


def test_a_cache_that_fails_is_left_alone_for_a_while() -> None:
    client = _Client()
    client.fails = True
    cache = _cache(client)

    assert cache.find([_KEY]) == cache.find([_KEY]) == {}
    assert client.asked == 1
