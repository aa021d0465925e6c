"""The Redis tier beside a server that is dead, hangs or is full, and cancelled look-ups."""

import asyncio
import random
from functools import partial

import pytest

from sluicegate.gateway.cache.entry import CacheHit
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.redis.circuit_breaker import CircuitBreaker
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.caching import cache_key, entry, fetch
from tests.support.clock import Clock
from tests.support.delaying_proxy import DelayingProxy
from tests.support.redis_tier import make_tier, written

pytestmark = pytest.mark.anyio
NOW = 1_000.0


async def test_a_dead_redis_is_a_miss_then_not_asked_then_asked_again(own_valkey: Valkey) -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures=3, open_for=1.0)
    async with make_tier(own_valkey.url, monotonic=clock, breaker=breaker) as tier:
        tier.store_all([(cache_key("a"), entry("A"))], NOW)
        await written(tier, 1)
        own_valkey.kill()

        for _ in range(5):
            assert await fetch(tier, [cache_key("a")]) == [None]
        tier.store_all([(cache_key("b"), entry("B"))], NOW)
        await until(lambda: tier.statistics().queued == 0)
        down = tier.statistics()
        own_valkey.start()
        clock.advance(1.0)
        up = await fetch(tier, [cache_key("a")])

        assert (down.read_errors, down.skipped, down.breaker) == (3, 3, "open")
        assert up == [None]  # nobody waits for what finds out whether it is back
        await until(lambda: tier.statistics().breaker == "closed")
        tier.store_all([(cache_key("a"), entry("A"))], NOW)
        await written(tier, 2)
        assert await fetch(tier, [cache_key("a")]) == [entry("A")]


async def test_a_redis_that_hangs_costs_the_timeout_and_opens_the_breaker(
    own_valkey: Valkey,
) -> None:
    breaker = CircuitBreaker(failures=2)
    async with make_tier(own_valkey.url, timeout=0.05, breaker=breaker) as tier:
        await fetch(tier, [cache_key("a")])
        own_valkey.pause()

        assert await fetch(tier, [cache_key("a")]) == [None]
        assert await fetch(tier, [cache_key("a")]) == [None]
        await until(lambda: tier.statistics().breaker == "open")
        assert await fetch(tier, [cache_key("a")]) == [None]

        own_valkey.resume()
    assert tier.statistics().timeouts <= 2
    assert tier.statistics().skipped >= 1


async def test_a_write_that_fails_counts_for_the_breaker(own_valkey: Valkey) -> None:
    async with make_tier(own_valkey.url, breaker=CircuitBreaker(failures=1)) as tier:
        own_valkey.kill()

        tier.store_all([(cache_key("a"), entry("A"))], NOW)
        await until(lambda: tier.statistics().write_errors == 1)

        assert tier.statistics().breaker == "open"


async def test_a_full_redis_refuses_writes_and_they_are_counted() -> None:
    with Valkey("--maxmemory", "1", "--maxmemory-policy", "noeviction") as full:
        async with make_tier(full.url) as tier:
            tier.store_all([(cache_key("a"), entry("A"))], NOW)
            await until(lambda: tier.statistics().write_errors == 1)

            assert tier.statistics().written == 0
            assert await fetch(tier, [cache_key("a")]) == [None]


async def test_a_cancelled_lookup_neither_breaks_the_connection_nor_the_other_lookups(
    valkey: str,
) -> None:
    async with make_tier(valkey) as tier:
        tier.store_all([(cache_key("a"), entry("A"))], NOW)
        await written(tier, 1)
        gone = asyncio.create_task(fetch(tier, [cache_key("b")]))
        stays = asyncio.create_task(fetch(tier, [cache_key("a")]))
        await asyncio.wait({gone}, timeout=0)

        gone.cancel()

        assert await stays == [entry("A")]
        assert gone.cancelled()


async def test_lookups_cancelled_at_random_never_answer_for_another_key(
    valkey: str, valkey_server: Valkey, pytestconfig: pytest.Config
) -> None:
    """How many: `--cache-lookups`."""
    lookups: int = pytestconfig.getoption("--cache-lookups")
    chance = random.Random(11)
    proxy = DelayingProxy(str(valkey_server.socket), delay=lambda: chance.random() * 0.01)
    async with proxy, make_tier(valkey) as writer:
        for number in range(0, 400, 2):
            writer.store_all([(cache_key(number), entry(number))], NOW)
        await written(writer, 200)
        # No memory to speak of: every look-up goes through the proxy.
        reader = make_tier(proxy.url, timeout=2.0, breaker=CircuitBreaker(failures=10**9))
        cache = ResultCache(
            CacheConfig(memory_bytes=0), make_remote=lambda _: reader, clock=Clock(NOW)
        )
        async with cache:
            right = wrong = cancelled = 0
            for _ in range(lookups // 40):
                asked = [
                    [chance.randrange(400) for _ in range(chance.randrange(1, 6))]
                    for _ in range(40)
                ]
                tasks = [asyncio.create_task(ask(cache, numbers)) for numbers in asked]
                await asyncio.wait(tasks, timeout=chance.random() * 0.01)
                for task in chance.sample(tasks, 15):
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    cancelled += isinstance(outcome, asyncio.CancelledError)
                    right += outcome is True
                    wrong += outcome is False
        assert cache.statistics().remote.mismatches == 0
        assert cache.statistics().remote.read_errors == 0

    assert wrong == 0
    assert right > lookups // 2
    assert cancelled > lookups // 8
    assert proxy.connections <= 16


def resolve(future: asyncio.Future[list[CacheHit | None]], found: list[CacheHit | None]) -> None:
    """Tell whoever waits, unless it was cancelled."""
    if not future.done():
        future.set_result(found)


async def ask(cache: ResultCache, numbers: list[int]) -> bool:
    """Say whether each found answer is its number's, and each stored one was found."""
    keys = [cache_key(number) for number in numbers]
    if len(numbers) % 2:
        found = await cache.lookup(keys)
    else:
        told: asyncio.Future[list[CacheHit | None]] = asyncio.get_running_loop().create_future()
        cache.lookup_nowait(keys, partial(resolve, told))
        found = await told
    expected = [b"%d" % number if number % 2 == 0 else None for number in numbers]
    return [one.entry.payload if one else None for one in found] == expected
