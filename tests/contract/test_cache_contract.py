"""What every result cache promises, whichever tiers it has."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest

from sluicegate.gateway.cache.build import build_cache
from sluicegate.gateway.cache.entry import CacheHit
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig
from testing.waiting import until
from tests.support.caching import cache_key, entry
from tests.support.clock import Clock

TIERS = {
    "both": CacheConfig(),
    "memory": CacheConfig(redis_enabled=False),
    "redis": CacheConfig(memory_enabled=False),
    "none": CacheConfig(memory_enabled=False, redis_enabled=False),
}

LookUp = Callable[[Sequence[CacheKey]], Awaitable[list[CacheHit | None]]]


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture(params=list(TIERS))
async def cache(
    request: pytest.FixtureRequest, valkey: str, clock: Clock, anyio_backend: str
) -> AsyncIterator[ResultCache]:
    document = msgspec.structs.replace(TIERS[request.param], redis_timeout=5.0)
    cache = build_cache(document, url=valkey, clock=clock, monotonic=Clock(), random=lambda: 0.0)
    async with cache:
        yield cache


@pytest.fixture
def keeps(request: pytest.FixtureRequest) -> bool:
    """Whether the cache under test keeps anything."""
    return "none" not in request.node.name


@pytest.fixture
def writes(request: pytest.FixtureRequest) -> int:
    """How many of one entry given to the cache under test are written to Redis."""
    return int(any(name in request.node.name for name in ("both", "redis")))


@pytest.fixture(params=["awaited", "called back"])
def look_up(request: pytest.FixtureRequest, cache: ResultCache) -> LookUp:
    """Both ways to ask the cache under test."""

    async def called_back(keys: Sequence[CacheKey]) -> list[CacheHit | None]:
        told: list[list[CacheHit | None]] = []
        cache.lookup_nowait(keys, told.append)
        assert told == []
        await until(lambda: bool(told), what="told")
        (found,) = told
        return found

    return cache.lookup if request.param == "awaited" else called_back


async def written(cache: ResultCache, count: int) -> None:
    """Wait until Redis has `count` entries: they are written off the path."""
    await until(lambda: cache.statistics().remote.written == count, what="entries are written")


@pytest.mark.anyio
async def test_what_was_stored_is_found_by_its_key(
    cache: ResultCache,
    look_up: LookUp,
    keeps: bool,  # noqa: FBT001 - a fixture
    writes: int,
) -> None:
    cache.store(cache_key("a"), entry("A"))
    cache.store(cache_key("b"), entry("B"))
    await written(cache, 2 * writes)

    found = await look_up([cache_key("b"), cache_key("c"), cache_key("a")])

    payloads = [one.entry.payload if one is not None else None for one in found]
    assert payloads == ([b"B", None, b"A"] if keeps else [None] * 3)


@pytest.mark.anyio
async def test_nothing_is_found_that_was_not_stored(cache: ResultCache, look_up: LookUp) -> None:
    assert await look_up([cache_key(name) for name in range(100)]) == [None] * 100
    assert cache.peek(cache_key(1), 1_000.0) is None


@pytest.mark.anyio
async def test_no_keys_are_no_answers(cache: ResultCache, look_up: LookUp) -> None:
    assert await look_up([]) == []


@pytest.mark.anyio
async def test_a_forced_collision_of_addresses_is_a_miss(
    cache: ResultCache, look_up: LookUp
) -> None:
    key = cache_key("a")
    colliding = CacheKey(key.address, bytes(16))
    cache.store(key, entry("mine"))

    assert await look_up([colliding]) == [None]
    assert cache.peek(colliding, 1_000.0) is None


@pytest.mark.anyio
async def test_an_expired_answer_is_not_found(
    cache: ResultCache, look_up: LookUp, clock: Clock
) -> None:
    cache.store(cache_key("a"), entry(ttl=10.0))
    clock.advance(10.0)
    cache.store(cache_key("b"), entry(at=900.0, ttl=50.0))

    assert await look_up([cache_key("a"), cache_key("b")]) == [None, None]
    assert cache.peek(cache_key("a"), clock()) is None


@pytest.mark.anyio
async def test_peek_finds_what_lookup_found_if_there_is_memory(
    cache: ResultCache, look_up: LookUp, clock: Clock, writes: int, request: pytest.FixtureRequest
) -> None:
    cache.store(cache_key("a"), entry("A"))
    await written(cache, writes)

    await look_up([cache_key("a")])

    has_memory = cache.statistics().memory.capacity_bytes > 0
    assert (cache.peek(cache_key("a"), clock()) is not None) == has_memory
