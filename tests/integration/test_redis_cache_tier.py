"""The Redis tier against a real server: gathered reads, shared answers, every kind of trouble."""

import asyncio

import msgspec
import pytest

from sluicegate.gateway.cache.entry import CachedResult, encode_entry
from sluicegate.gateway.cache.key import CacheKey
from sluicegate.gateway.cache.redis_tier import KEY_PREFIX
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.redis.circuit_breaker import CircuitBreaker
from sluicegate.gateway.redis.client import connect
from testing.valkey import Valkey
from testing.waiting import eventually, until
from tests.support.caching import cache_key, entry, fetch
from tests.support.clock import Clock
from tests.support.redis_tier import make_tier, written

pytestmark = pytest.mark.anyio
NOW = 1_000.0


def is_current(found: CachedResult) -> bool:
    return True


async def test_another_worker_finds_what_one_stored(valkey: str) -> None:
    async with make_tier(valkey) as first, make_tier(valkey) as second:
        first.store_all([(cache_key("a"), entry("A"))], NOW)
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
    async with make_tier(valkey, lease=60.0) as one, make_tier(valkey, lease=60.0) as other:
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


async def test_the_rest_of_a_life_is_shortened_by_the_jitter(valkey: str) -> None:
    async with make_tier(valkey, jitter=0.1) as tier:
        tier.store_all([(cache_key("a"), entry(at=NOW - 200.0, ttl=300.0))], NOW)
        await written(tier, 1)

        redis = connect(valkey, timeout=60.0)
        left = await redis.pttl(KEY_PREFIX + cache_key("a").address)
        await redis.aclose()

        assert 80_000 < left <= 90_000


async def test_an_entry_that_has_expired_is_not_written(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        both = [(cache_key(ttl), entry(at=NOW - 100.0, ttl=ttl)) for ttl in (100, 200)]
        tier.store_all(both, NOW)
        await written(tier, 1)

    assert tier.statistics().write_errors == 0


async def test_leaving_writes_what_was_queued(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        for number in range(1_000):
            tier.store_all([(cache_key(number), entry(number))], NOW)

    async with make_tier(valkey) as other:
        found = await fetch(other, [cache_key(number) for number in range(1_000)])
    assert found == [entry(number) for number in range(1_000)]


@pytest.mark.parametrize("count", [1, 200])
async def test_long_answers_lie_packed_in_redis_and_come_back(count: int, valkey: str) -> None:
    answers = [entry(f"{number} is a long answer. " * 200) for number in range(count)]
    async with make_tier(valkey) as tier:
        for number, answer in enumerate(answers):
            tier.store_all([(cache_key(number), answer)], NOW)
        await written(tier, count)

        assert await fetch(tier, [cache_key(number) for number in range(count)]) == answers

    redis = connect(valkey, timeout=60.0)
    assert await redis.strlen(KEY_PREFIX + cache_key(0).address) < len(answers[0].payload) // 2
    await redis.aclose()


async def test_more_than_the_queue_holds_is_dropped_and_counted(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        for number in range(10_000):
            tier.store_all([(cache_key(number), entry(number))], NOW)

        assert tier.statistics().dropped == 10_000 - 8_192
        await written(tier, 8_192)


async def test_more_bytes_than_the_queue_holds_are_dropped(valkey: str) -> None:
    async with make_tier(valkey) as tier:
        large = [(cache_key(number), entry("a" * (6 << 20))) for number in range(4)]
        tier.store_all(large, NOW)

        assert tier.statistics().dropped == 2
        await written(tier, 2)


async def test_written_entries_make_room_in_the_queue(valkey: str) -> None:
    large = entry("a" * (6 << 20))
    async with make_tier(valkey) as tier:
        for number in range(4):
            tier.store_all([(cache_key(number), large)], NOW)
            assert tier.statistics().dropped == 0
            await written(tier, number + 1)


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
        tier.store_all([(cache_key("b"), entry("B"))], NOW)
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
        tier.store_all([(cache_key("a"), entry("A"))], NOW)
        await written(tier, 1)
        while entry("A") not in (one for entries in told for one in entries):
            told.clear()  # of a time-out, where the machine stalls
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


async def test_one_that_fails_when_it_is_called_back_harms_no_other(
    valkey: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[list[CachedResult | None]] = []

    def fail(entries: list[CachedResult | None]) -> None:
        raise RuntimeError("a bug")

    async with make_tier(valkey) as tier:
        tier.store_all([(cache_key("a"), entry("A"))], NOW)
        await written(tier, 1)
        for caller in (told.append, fail, told.append):
            tier.fetch_nowait([cache_key("a")], caller)
        await until(lambda: len(told) == 2, what="told")
        assert await fetch(tier, [cache_key("a")]) == [entry("A")]

    assert told == [[entry("A")]] * 2
    assert "RuntimeError: a bug" in caplog.text


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


async def test_what_redis_has_is_kept_in_memory_when_asked_for(valkey: str) -> None:
    async with make_tier(valkey) as writer:
        writer.store_all([(cache_key("a"), entry("A"))], NOW)
    cache = ResultCache(CacheConfig(), make_remote=lambda _: make_tier(valkey), clock=Clock(NOW))

    async with cache:
        first = await cache.lookup([cache_key("a")])
        second = await cache.lookup([cache_key("a")])

    assert [one.tier for one in first + second if one] == ["redis", "memory"]


async def test_a_collision_in_redis_is_a_miss_and_counted(valkey: str) -> None:
    key = cache_key("a")
    async with make_tier(valkey) as tier:
        tier.store_all([(key, entry("mine"))], NOW)
        await written(tier, 1)

        assert await fetch(tier, [CacheKey(key.address, bytes(16))]) == [None]
        assert tier.statistics().mismatches == 1


async def test_closing_leaves_no_task(valkey: str) -> None:
    before = asyncio.all_tasks()
    async with make_tier(valkey) as tier:
        tier.store_all([(cache_key("a"), entry("A"))], NOW)
        await fetch(tier, [cache_key("a")])

    assert asyncio.all_tasks() == before
