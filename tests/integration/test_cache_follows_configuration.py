"""A reload of the document changes the result cache of a worker that serves."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.cache.build import build_cache
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from testing.raw_http import post
from testing.stub_backend import StubBackend
from testing.waiting import eventually, until
from tests.support.caching import cache_key, entry
from tests.support.clock import Clock
from tests.support.worker import classify, running_worker

pytestmark = pytest.mark.anyio
ENTRIES = 5_000
DOCUMENT = CacheConfig(redis_timeout=5.0, ttl_jitter=0.0)


@pytest.fixture
async def redis(valkey: str) -> AsyncIterator[Redis]:
    client = connect(valkey, timeout=2.0)
    yield client
    await client.aclose()


@pytest.fixture
async def cache(valkey: str, anyio_backend: str) -> AsyncIterator[ResultCache]:
    clock = Clock(1_000.0)
    built = build_cache(DOCUMENT, url=valkey, clock=clock, monotonic=Clock(), random=lambda: 1.0)
    async with built:
        yield built


def change(cache: ResultCache, **fields: object) -> None:
    cache.configure(msgspec.structs.replace(DOCUMENT, **fields))


async def test_memory_shrinks_and_grows_and_keeps_what_fits(cache: ResultCache) -> None:
    for number in range(ENTRIES):
        cache.store(cache_key(number), entry("x" * 500))
    before = cache.statistics().memory

    change(cache, memory_bytes=1_000_000)
    await until(lambda: cache.statistics().memory.capacity_bytes == 1_000_000)
    small = cache.statistics().memory
    change(cache, memory_bytes=128 * 1024 * 1024)
    await until(lambda: cache.statistics().memory.capacity_bytes == 128 * 1024 * 1024)
    large = cache.statistics().memory

    assert before.entries == ENTRIES
    assert 0 < small.used_bytes <= 1_000_000
    assert large.entries == small.entries


async def test_memory_shrinks_though_another_change_follows_at_once(
    cache: ResultCache,
) -> None:
    change(cache, memory_bytes=1_000_000)
    change(cache, memory_bytes=1_000_000, refusal_ttl=1.0)

    await until(lambda: cache.statistics().memory.capacity_bytes == 1_000_000)


async def test_memory_that_is_switched_off_answers_no_more(cache: ResultCache) -> None:
    key = cache_key("a")
    cache.store(key, entry())

    change(cache, memory_enabled=False)
    await until(lambda: cache.statistics().memory.entries == 0)

    await eventually(lambda: is_in_redis(cache, "a"))
    assert cache.peek(key, 1_000.0) is None


async def is_in_redis(cache: ResultCache, name: str) -> bool:
    (found,) = await cache.lookup([cache_key(name)])
    return found is not None and found.tier == "redis"


async def test_redis_is_switched_off_and_on_again(cache: ResultCache, redis: Redis) -> None:
    await redis.flushall()
    change(cache, redis_enabled=False, memory_enabled=False)
    await until(lambda: cache.statistics().memory.capacity_bytes == 0)
    cache.store(cache_key("off"), entry())
    off = await cache.lookup([cache_key("off")])

    change(cache, memory_enabled=False)

    async def is_on() -> bool:
        cache.store(cache_key("on"), entry())
        return await is_in_redis(cache, "on")

    await eventually(is_on)
    assert off == [None]
    assert await redis.dbsize() == 1


async def test_lifetimes_are_shortened_by_the_new_share(cache: ResultCache, redis: Redis) -> None:
    await redis.flushall()
    change(cache, ttl_jitter=0.5)

    async def is_shorter() -> bool:
        cache.store(cache_key("a"), entry(ttl=1_000.0))
        names = await redis.keys()
        return bool(names) and 400 < await redis.ttl(names[0]) <= 500

    await eventually(is_shorter)


async def test_a_published_document_reaches_the_cache_of_a_worker(
    tmp_path: Path, valkey: str, redis: Redis
) -> None:
    """As `POST /admin/config/reload` does it; what is in force is what the worker reports."""
    await redis.flushall()
    async with (
        StubBackend(backend_id="eu-0", region="eu") as stub,
        running_worker(tmp_path, valkey, [stub], cache={"memory_bytes": 9_000_000}) as worker,
        worker.connect() as connection,
    ):
        await connection.send(post("/v1/classify", classify("known")))
        assert (await connection.response()).status == 200
        document = worker.settings.config / "gateway.yaml"
        text = document.read_text().replace("9000000", "3000000")
        document.write_text(text.replace('"cache":{', '"cache":{"redis_enabled":false,'))
        with Ledger.create(worker.settings.ledger) as ledger:
            control = Control(redis)
            publisher = Publisher(
                control=control, ledger=ledger, settings=worker.settings, clock=lambda: 0.0
            )
            changed = await publisher.reload(author="test")

        async def is_in_force() -> bool:
            return await capacity(control) == 3_000_000

        await eventually(is_in_force)
        await connection.send(post("/v1/classify", classify("known")))
        again = await connection.response()

    assert changed.live
    assert again.json()["usage"]["hit"] == 1


async def capacity(control: Control) -> int:
    reports = await control.reports()
    found = [msgspec.json.decode(text)["cache"]["memory"] for text in reports.values()]
    return int(found[0]["capacity_bytes"])
