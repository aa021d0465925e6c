"""Workers that find an answer which may not be given any more agree on who computes it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.gateway.cache.build import build_cache
from sluicegate.gateway.cache.entry import CachedResult, CacheHit
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.redis_tier import RedisTier
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.redis.pipeline import Command, StandaloneClient
from testing.waiting import until
from tests.support.caching import cache_key, entry
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
NOW = 1_000.0


@asynccontextmanager
async def cache_at(url: str) -> AsyncIterator[ResultCache]:
    """A worker's cache without memory, patient enough for a busy machine."""
    document = CacheConfig(memory_enabled=False, redis_timeout=5.0, lease=60.0)
    built = build_cache(document, url=url, clock=Clock(NOW), monotonic=Clock(), random=lambda: 0.0)
    async with built as cache:
        yield cache


async def written(cache: ResultCache, count: int) -> None:
    await until(lambda: cache.statistics().remote.written == count, what="it is in Redis")


def is_newer(found: CachedResult, _now: float) -> bool:
    return found.stored_at > NOW


@pytest.mark.parametrize("text", ["short", "long enough to be packed " * 100])
async def test_of_workers_that_find_an_answer_outdated_one_claims_its_place(
    text: str, valkey: str
) -> None:
    key = cache_key(text)
    async with cache_at(valkey) as one, cache_at(valkey) as other:
        one.store(key, entry(text, at=NOW))
        await written(one, 1)

        current = await other.claim([key])
        claimed = await asyncio.gather(one.claim([key], is_newer), other.claim([key], is_newer))
        one.store(key, entry("newer", at=NOW + 1))
        await written(one, 2)
        later = await other.claim([key], is_newer)

    assert current == [True]
    assert sorted(claimed) == [[False], [True]]
    assert later == [True]


async def look_up(cache: ResultCache, *keys: CacheKey) -> None:
    """Look `keys` up as a request does that computes what is not found."""
    found: asyncio.Future[list[CacheHit | None]] = asyncio.get_running_loop().create_future()
    cache.lookup_nowait(keys, found.set_result, claims=True)
    await found


async def test_while_little_is_found_a_look_up_claims_what_is_missing(valkey: str) -> None:
    stored, first, second = (cache_key(text) for text in ("stored", "first", "second"))
    async with cache_at(valkey) as one, cache_at(valkey) as other:
        one.store(stored, entry("stored", at=NOW))
        await written(one, 1)

        await look_up(one, stored)
        await look_up(one, first)
        after_a_hit = one.has_claimed([first])
        await look_up(one, second, stored)
        after_a_miss = one.has_claimed([second]), one.has_claimed([second, stored])
        theirs = await other.claim([first, second])

    assert not after_a_hit
    assert after_a_miss == (True, False)
    assert theirs == [False, True]


async def test_what_a_worker_has_claimed_stays_its_own_when_the_cache_is_configured_anew(
    valkey: str,
) -> None:
    async with cache_at(valkey) as cache:
        assert await cache.claim([cache_key("a")]) == [False]
        before = cache._remote
        cache.configure(CacheConfig(memory_enabled=False, redis_timeout=4.0, lease=60.0))
        await until(lambda: cache._remote is not before)

        assert await cache.claim([cache_key("a")]) == [False]


async def test_a_claim_by_a_look_up_that_nobody_takes_ends_when_it_is_released(
    valkey: str,
) -> None:
    keys = [cache_key("a"), cache_key("b")]
    async with cache_at(valkey) as cache, cache_at(valkey) as other:
        await cache.lookup([cache_key("x")])  # from now on look-ups claim
        found: asyncio.Future[list[CacheHit | None]] = asyncio.get_running_loop().create_future()
        cache.lookup_nowait(keys, found.set_result, claims=True)
        assert await found == [None, None]
        assert await other.claim(keys) == [True, True]

        cache.release_unused(keys[:1])
        tier = cache._remote
        assert isinstance(tier, RedisTier)
        await until(lambda: len(tier._tasks) == 0, what="it is released")

        assert await other.claim(keys[:1]) == [False]
        assert cache.has_claimed(keys[1:])
        assert not cache.has_claimed(keys[:1])


async def test_what_another_worker_has_claimed_or_stored_is_not_released(valkey: str) -> None:
    claimed, stored = cache_key("claimed"), cache_key("stored")
    async with cache_at(valkey) as cache, cache_at(valkey) as other:
        assert await other.claim([claimed]) == [False]
        other.store(stored, entry("stored", at=NOW))
        await written(other, 1)

        cache.release([claimed, stored])
        tier = cache._remote
        assert isinstance(tier, RedisTier)
        await until(lambda: len(tier._tasks) == 0, what="it is released")

        assert await cache.claim([claimed, stored]) == [True, True]


class RenewalsOf(StandaloneClient):
    """Keeps how many claims each round trip renewed."""

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout=5.0)
        self.renewed: list[int] = []

    @override
    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        if commands[0][0] == b"PEXPIRE":
            self.renewed.append(len(commands))
        return await super().execute(commands)


async def test_claims_that_are_due_at_about_the_same_time_are_renewed_together(
    valkey: str,
) -> None:
    client, keys = RenewalsOf(valkey), [cache_key(number) for number in range(100)]
    async with RedisTier(
        reads=StandaloneClient(valkey, timeout=5.0),
        writes=client,
        timeout=5.0,
        ttl_jitter=0.0,
        lease=10.0,
        monotonic=Clock(),
        random=lambda: 0.0,
    ) as tier:
        for key in keys:
            tier.renew([key])
            await asyncio.sleep(0)  # each request has a timer of its own
        await until(lambda: sum(client.renewed) == len(keys), what="all are renewed")

    assert len(client.renewed) < len(keys) // 2
