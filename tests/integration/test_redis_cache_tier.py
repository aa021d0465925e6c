"""The Redis tier against a real server: gathered reads, shared answers, every kind of trouble."""

import asyncio
import random
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from gateway.cache.base import fetch
from gateway.cache.entry import CachedResult, CacheHit, encode_entry
from gateway.cache.key import CacheKey
from gateway.cache.redis_tier import KEY_PREFIX, RedisTier
from gateway.cache.result_cache import ResultCache
from gateway.config.document import CacheConfig
from gateway.redis.circuit_breaker import CircuitBreaker
from gateway.redis.client import connect
from gateway.redis.pipeline import StandaloneClient
from loadtests.harness.delaying_proxy import DelayingProxy
from loadtests.harness.valkey import Valkey
from loadtests.harness.waiting import eventually, until
from tests.support.caching import cache_key, entry
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
NOW = 1_000.0


def make_tier(
    url: str,
    *,
    timeout: float = 5.0,
    jitter: float = 0.0,
    monotonic: Clock | None = None,
    breaker: CircuitBreaker | None = None,
) -> RedisTier:
    return RedisTier(
        reads=StandaloneClient(url, timeout=timeout),
        writes=StandaloneClient(url, timeout=timeout),
        timeout=timeout,
        ttl_jitter=jitter,
        lease=0.25,
        monotonic=monotonic or Clock(),
        random=lambda: 1.0,
        breaker=breaker,
    )


def is_current(found: CachedResult) -> bool:
    return True


async def written(tier: RedisTier, count: int) -> None:
    await until(lambda: tier.statistics().written == count, what=f"{count} entries written")


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A server the test may kill."""
    with Valkey() as server:
        yield server


async def test_another_worker_finds_what_one_stored(valkey: str) -> None:
    async with make_tier(valkey) as first, make_tier(valkey) as second:
        first.store(cache_key("a"), entry("A"), NOW)
        await written(first, 1)

        assert await fetch(second, [cache_key("a"), cache_key("b")]) == [entry("A"), None]
        assert (second.statistics().hits, second.statistics().misses) == (1, 1)


async def test_all_keys_asked_for_in_one_tick_travel_in_one_call(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        asked = [fetch(tier, [cache_key(f"{n} a"), cache_key(f"{n} b")]) for n in range(100)]
        await asyncio.gather(*asked)

        assert tier.statistics().reads == 1
        assert tier.statistics().misses == 200


async def test_a_claim_is_one_to_others_and_none_to_who_made_it(valkey: str) -> None:
    async with make_tier(valkey) as one, make_tier(valkey) as other:
        await one.claim([cache_key("a")], is_current)
        redis = connect(valkey, timeout=60.0)

        async def is_claimed() -> bool:
            return bool(await redis.exists(KEY_PREFIX + cache_key("a").address))

        await eventually(is_claimed)
        await redis.aclose()
        await asyncio.gather(fetch(one, [cache_key("a")]), fetch(other, [cache_key("a")]))

        assert await one.claim([cache_key("a")], is_current) == [False]
        assert await other.claim([cache_key("a")], is_current) == [True]
        assert (one.statistics().claimed, other.statistics().claimed) == (0, 1)


async def test_a_life_is_shortened_by_the_jitter(valkey: str) -> None:
    async with make_tier(valkey, jitter=0.1) as tier:
        tier.store(cache_key("a"), entry(at=NOW, ttl=100.0), NOW)
        await written(tier, 1)

        redis = connect(valkey, timeout=60.0)
        left = await redis.pttl(KEY_PREFIX + cache_key("a").address)
        await redis.aclose()

        assert 80_000 < left <= 90_000


async def test_leaving_writes_what_was_queued(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        for number in range(1_000):
            tier.store(cache_key(number), entry(number), NOW)

    async with make_tier(valkey) as other:
        found = await fetch(other, [cache_key(number) for number in range(1_000)])
    assert found == [entry(number) for number in range(1_000)]


@pytest.mark.parametrize("count", [1, 200])
async def test_long_answers_lie_packed_in_redis_and_come_back(count: int, valkey: str) -> None:
    answers = [entry(f"{number} is a long answer. " * 200) for number in range(count)]
    async with make_tier(valkey) as tier:
        for number, answer in enumerate(answers):
            tier.store(cache_key(number), answer, NOW)
        await written(tier, count)

        assert await fetch(tier, [cache_key(number) for number in range(count)]) == answers

    redis = connect(valkey, timeout=60.0)
    assert await redis.strlen(KEY_PREFIX + cache_key(0).address) < len(answers[0].payload) // 2
    await redis.aclose()


async def test_more_than_the_queue_holds_is_dropped_and_counted(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        for number in range(10_000):
            tier.store(cache_key(number), entry(number), NOW)

        assert tier.statistics().dropped == 10_000 - 8_192
        await written(tier, 8_192)


async def test_a_value_that_is_no_entry_is_a_miss_and_counted(valkey: str) -> None:
    redis = connect(valkey, timeout=60.0)
    await redis.set(KEY_PREFIX + cache_key("a").address, b"\x01" + cache_key("a").tag + b"\xc1")
    await redis.set(KEY_PREFIX + cache_key("b").address, b"something else")
    await redis.aclose()

    async with make_tier(valkey) as tier:
        assert await fetch(tier, [cache_key("a"), cache_key("b")]) == [None, None]
        assert (tier.statistics().corrupt, tier.statistics().mismatches) == (1, 1)


async def test_a_damaged_value_costs_its_neighbours_nothing(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        tier.store(cache_key("b"), entry("B"), NOW)
        await written(tier, 1)
        refusal = msgspec.structs.replace(entry("A"), code="\x7f" * 4)
        damaged = encode_entry(cache_key("a"), refusal)
        redis = connect(valkey, timeout=60.0)
        await redis.set(KEY_PREFIX + cache_key("a").address, damaged.replace(b"\x7f", b"\xff"))
        await redis.aclose()

        asked = [fetch(tier, [cache_key(name)]) for name in "abab"]
        assert await asyncio.gather(*asked) == [[None], [entry("B")]] * 2
        told = tier.statistics()
        assert (told.corrupt, told.reads, told.read_errors, told.timeouts) == (2, 1, 0, 0)


async def test_whoever_is_called_back_is_told_once_in_time_whatever_redis_does(
    own_valkey: Valkey,
) -> None:
    told: list[list[CachedResult | None]] = []
    breaker = CircuitBreaker(failures=3)
    async with make_tier(own_valkey.url, timeout=0.05, breaker=breaker) as tier:
        tier.store(cache_key("a"), entry("A"), NOW)
        await written(tier, 1)
        tier.fetch_nowait([cache_key("a")], told.append)  # there is no connection for reads yet
        await until(lambda: len(told) == 1, what="told")
        own_valkey.pause()
        while len(told) < 6:
            before = len(told)
            tier.fetch_nowait([cache_key("a")], told.append)
            await until(lambda before=before: len(told) > before, what="told")  # type: ignore[misc]
        await until(lambda: tier.statistics().breaker == "open")
        tier.fetch_nowait([cache_key("a")], told.append)
        at_once = len(told)
        await until(lambda: len(told) == 7, what="told")
        own_valkey.resume()

    assert told == [[entry("A")]] + [[None]] * 6
    assert at_once == 6


async def test_one_that_fails_when_it_is_called_back_harms_no_other(valkey: str) -> None:
    told: list[list[CachedResult | None]] = []
    faults: list[str] = []
    loop = asyncio.get_running_loop()
    usual = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, fault: faults.append(str(fault.get("exception"))))

    def fail(entries: list[CachedResult | None]) -> None:
        raise RuntimeError("a bug")

    async with make_tier(valkey) as tier:
        tier.store(cache_key("a"), entry("A"), NOW)
        await written(tier, 1)
        for caller in (told.append, fail, told.append):
            tier.fetch_nowait([cache_key("a")], caller)
        await until(lambda: len(told) == 2, what="told")
        assert await fetch(tier, [cache_key("a")]) == [entry("A")]
    loop.set_exception_handler(usual)

    assert told == [[entry("A")]] * 2
    assert faults == ["a bug"]


async def test_whoever_waits_when_the_tier_is_left_is_told_once(own_valkey: Valkey) -> None:
    told: list[list[CachedResult | None]] = []
    async with make_tier(own_valkey.url, timeout=5.0) as tier:
        await fetch(tier, [cache_key("a")])
        own_valkey.pause()
        tier.fetch_nowait([cache_key("a")], told.append)
        await until(lambda: tier.statistics().reads == 2, what="it is asked")
        tier.fetch_nowait([cache_key("a")], told.append)  # waits for its turn

    await until(lambda: len(told) == 2, what="told")
    own_valkey.resume()
    assert told == [[None]] * 2


async def test_a_dead_redis_is_a_miss_then_not_asked_then_asked_again(own_valkey: Valkey) -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures=3, open_for=1.0)
    async with make_tier(own_valkey.url, monotonic=clock, breaker=breaker) as tier:
        tier.store(cache_key("a"), entry("A"), NOW)
        await written(tier, 1)
        own_valkey.kill()

        for _ in range(5):
            assert await fetch(tier, [cache_key("a")]) == [None]
        tier.store(cache_key("b"), entry("B"), NOW)
        await until(lambda: tier.statistics().queued == 0)
        down = tier.statistics()
        own_valkey.start()
        clock.advance(1.0)
        up = await fetch(tier, [cache_key("a")])

        assert (down.read_errors, down.skipped, down.breaker) == (3, 3, "open")
        assert up == [None]  # nobody waits for what finds out whether it is back
        await until(lambda: tier.statistics().breaker == "closed")
        tier.store(cache_key("a"), entry("A"), NOW)
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


async def test_a_full_redis_refuses_writes_and_they_are_counted() -> None:
    with Valkey("--maxmemory", "1", "--maxmemory-policy", "noeviction") as full:
        async with make_tier(full.url) as tier:
            tier.store(cache_key("a"), entry("A"), NOW)
            await until(lambda: tier.statistics().write_errors == 1)

            assert await fetch(tier, [cache_key("a")]) == [None]


async def test_a_cancelled_lookup_neither_breaks_the_connection_nor_the_other_lookups(
    valkey: str,
) -> None:
    async with make_tier(valkey) as tier:
        tier.store(cache_key("a"), entry("A"), NOW)
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
            writer.store(cache_key(number), entry(number), NOW)
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


async def test_what_redis_has_is_kept_in_memory_when_asked_for(valkey: str) -> None:
    async with make_tier(valkey) as writer:
        writer.store(cache_key("a"), entry("A"), NOW)
    cache = ResultCache(CacheConfig(), make_remote=lambda _: make_tier(valkey), clock=Clock(NOW))

    async with cache:
        first = await cache.lookup([cache_key("a")])
        second = await cache.lookup([cache_key("a")])

    assert [one.tier for one in first + second if one] == ["redis", "memory"]


async def test_a_collision_in_redis_is_a_miss_and_counted(valkey: str) -> None:
    key = cache_key("a")
    async with make_tier(valkey) as tier:
        tier.store(key, entry("mine"), NOW)
        await written(tier, 1)

        assert await fetch(tier, [CacheKey(key.address, bytes(16))]) == [None]
        assert tier.statistics().mismatches == 1


async def test_closing_leaves_no_task(valkey: str) -> None:
    before = asyncio.all_tasks()
    async with make_tier(valkey) as tier:
        tier.store(cache_key("a"), entry("A"), NOW)
        await fetch(tier, [cache_key("a")])

    assert asyncio.all_tasks() == before
