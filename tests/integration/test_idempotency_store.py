"""The store of idempotency keys on a real server: claims, leases, answers and bounds."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from redis.asyncio import Redis

from sluicegate.gateway.config.document import IdempotencyConfig
from sluicegate.gateway.errors import DeadlineExceeded, DependencyUnavailable
from sluicegate.gateway.idempotency.store import (
    HEAD_BYTES,
    OVERHEAD_BYTES,
    ClaimOutcome,
    IdempotencyStore,
    StoredKey,
)
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.types import TenantId
from testing.valkey import Valkey
from testing.waiting import WAIT_LIMIT, eventually, until

pytestmark = pytest.mark.anyio
A, B = b"a" * 16, b"b" * 16
RECORD = HEAD_BYTES + OVERHEAD_BYTES


class Slow(NamedTuple):
    """A store, and its server, which can be stopped for longer than requests wait."""

    store: IdempotencyStore
    server: Valkey


class Bounds:
    """The configuration that applies now."""

    def __init__(self) -> None:
        self.now = IdempotencyConfig(lease=60.0)


@pytest.fixture
def bounds() -> Bounds:
    return Bounds()


@pytest.fixture
async def redis(valkey: str, anyio_backend: str) -> AsyncIterator[Redis]:
    client = connect(valkey, timeout=60.0)
    yield client
    await client.aclose()


@pytest.fixture
async def store(redis: Redis, bounds: Bounds) -> AsyncIterator[IdempotencyStore]:
    clock = asyncio.get_running_loop().time
    async with IdempotencyStore(redis=redis, config=lambda: bounds.now, monotonic=clock) as opened:
        yield opened


def key(
    store: IdempotencyStore, name: str = "k", tenant: str = "acme", *, within: float = 60.0
) -> StoredKey:
    deadline = asyncio.get_running_loop().time() + within
    return store.key(TenantId(tenant), name, deadline=deadline)


async def next_millisecond(redis: Redis) -> None:
    """Wait until the server tells what comes now from what was there, by its clock."""

    async def clock() -> int:
        seconds, micros = await redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    before = await clock()

    async def is_later() -> bool:
        return await clock() > before

    await eventually(is_later)


async def kept(redis: Redis, tenant: str = "acme") -> tuple[int, int]:
    """Return how many keys a tenant has, and what they are counted for; both structures agree."""
    stem = f"sg:idem:{{{tenant}}}:"
    names = await redis.zrange(stem + "index", 0, -1)
    records = await redis.hgetall(stem + "records")
    assert set(names) == set(records)
    total = int(await redis.get(stem + "bytes") or 0)
    assert total == sum(len(record) + OVERHEAD_BYTES for record in records.values())
    return len(names), total


async def test_one_runs_and_the_others_wait_until_there_is_an_answer(
    store: IdempotencyStore, redis: Redis
) -> None:
    mine = key(store)
    first = await mine.claim(A)
    meanwhile = await key(store).claim(A)
    other_tenant = key(store, tenant="other")
    elsewhere = await other_tenant.claim(A)
    await mine.finish(b"the answer")
    await other_tenant.finish()
    later = await key(store).claim(A)

    assert [first.outcome, meanwhile.outcome, elsewhere.outcome] == ["owned", "running", "owned"]
    assert (later.outcome, later.answer) == (ClaimOutcome.DONE, b"the answer")
    assert await kept(redis) == (1, RECORD + len(b"the answer"))
    assert 86_000 < await redis.ttl("sg:idem:{acme}:records") <= 86_460


async def test_tenants_may_choose_the_same_key(store: IdempotencyStore) -> None:
    first, other = key(store), key(store, tenant="globex")
    await first.claim(A)
    await first.finish(b"answer")

    claim = await other.claim(A)
    await other.finish()

    assert claim.outcome is ClaimOutcome.OWNED


async def test_another_request_is_told_from_the_first_in_each_state(
    store: IdempotencyStore,
) -> None:
    mine = key(store)
    await mine.claim(A)
    running = await key(store).claim(B)
    await mine.finish(b"x")
    done = await key(store).claim(B)
    released = key(store, "l")
    await released.claim(A)
    await released.finish()
    free = await key(store, "l").claim(B)

    assert [running.outcome, done.outcome, free.outcome] == ["other"] * 3


async def test_a_key_without_an_answer_is_run_again_and_keeps_its_first_time(
    store: IdempotencyStore,
) -> None:
    mine, next_ = key(store), key(store)
    first = await mine.claim(A)
    await mine.finish()
    again = await next_.claim(A)
    await next_.finish()

    assert (again.outcome, again.first) == (ClaimOutcome.OWNED, first.first)


async def test_a_claim_of_the_dead_ends_with_its_lease_and_that_of_the_living_does_not(
    store: IdempotencyStore, redis: Redis, bounds: Bounds
) -> None:
    bounds.now = IdempotencyConfig(lease=0.3)
    living = key(store, "living")
    await living.claim(A)
    dead = IdempotencyStore(
        redis=redis, config=lambda: bounds.now, monotonic=asyncio.get_running_loop().time
    )
    dead.tasks.start = lambda work: work.close()  # type: ignore[method-assign]  # it renews nothing
    lost = key(dead, "dead")
    await lost.claim(A)
    taken = key(store, "dead")

    async def is_taken_over() -> bool:
        return (await taken.claim(A)).outcome is ClaimOutcome.OWNED

    await eventually(is_taken_over)
    await lost.finish(b"too late")

    assert (await key(store, "living").claim(A)).outcome is ClaimOutcome.RUNNING
    assert (await key(store, "dead").claim(A)).outcome is ClaimOutcome.RUNNING
    await taken.finish(b"in time")
    assert (await key(store, "dead").claim(A)).answer == b"in time"
    await living.finish()


async def test_a_renewal_that_fails_is_not_the_last(
    store: IdempotencyStore, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds.now = IdempotencyConfig(lease=0.3)
    call, failed, is_renewed = store.call, asyncio.Event(), asyncio.Event()

    async def fail_once(action: str, key: StoredKey, value: bytes = b"") -> list[Any]:
        if action == "renew" and not failed.is_set():
            failed.set()
            raise ConnectionError
        if action == "renew":
            bounds.now = IdempotencyConfig(lease=60.0)
        reply = await call(action, key, value)
        if action == "renew":
            is_renewed.set()
        return reply

    monkeypatch.setattr(store, "call", fail_once)
    mine = key(store)
    await mine.claim(A)
    await asyncio.wait_for(is_renewed.wait(), WAIT_LIMIT)

    assert (await key(store).claim(A)).outcome is ClaimOutcome.RUNNING
    await mine.finish()


async def test_the_oldest_keys_of_a_tenant_are_forgotten_first(
    store: IdempotencyStore, redis: Redis, bounds: Bounds
) -> None:
    bounds.now = IdempotencyConfig(lease=60.0, max_keys=3)
    for name in "abcde":
        one = key(store, name)
        await one.claim(A)
        await one.finish(b"x")
        await next_millisecond(redis)

    assert await kept(redis) == (3, 3 * (RECORD + 1))
    assert [(await key(store, name).claim(A)).outcome for name in "cde"] == [ClaimOutcome.DONE] * 3


async def test_a_key_is_forgotten_after_its_lifetime(
    store: IdempotencyStore, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        one = key(store, name)
        await one.claim(A)
        await one.finish(b"x")
    await next_millisecond(redis)
    monkeypatch.setattr("sluicegate.gateway.idempotency.store.LIFETIME", 0.001)

    again = key(store, "a")
    claim = await again.claim(B)

    assert claim.outcome is ClaimOutcome.OWNED
    assert await kept(redis) == (1, RECORD)
    await again.finish()


async def test_a_finished_key_is_renewed_no_more(store: IdempotencyStore) -> None:
    before = asyncio.all_tasks()
    mine = key(store)
    await mine.claim(A)

    await mine.finish()

    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_silent_redis_is_not_asked_by_each_request(
    own_valkey: Valkey, bounds: Bounds
) -> None:
    redis = connect(own_valkey.url, timeout=0.1)
    async with IdempotencyStore(
        redis=redis, config=lambda: bounds.now, monotonic=lambda: 0.0
    ) as store:
        own_valkey.pause()
        for _ in range(2):
            with pytest.raises(DependencyUnavailable):
                await key(store).claim(A)
        own_valkey.resume()

    assert store.statistics().failures == 1
    await redis.aclose()


@pytest.fixture
async def slow(own_valkey: Valkey, bounds: Bounds, anyio_backend: str) -> AsyncIterator[Slow]:
    redis = connect(own_valkey.url, timeout=60.0)
    clock = asyncio.get_running_loop().time
    async with IdempotencyStore(redis=redis, config=lambda: bounds.now, monotonic=clock) as store:
        await redis.ping()
        yield Slow(store, own_valkey)
    await redis.aclose()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_claim_that_its_request_does_not_wait_for_ends_at_once(
    slow: Slow, *, is_cancelled: bool
) -> None:
    slow.server.pause()
    late = key(slow.store, within=WAIT_LIMIT if is_cancelled else 0.05)
    request = asyncio.create_task(late.claim(A))
    if is_cancelled:
        await asyncio.sleep(0)
        request.cancel()
    await asyncio.wait((request,))
    slow.server.resume()

    async def is_free() -> bool:
        next_ = key(slow.store)
        claim = await next_.claim(A)
        await next_.finish()
        return claim.outcome is ClaimOutcome.OWNED and slow.store.statistics().owned > 1

    await eventually(is_free)
    assert request.cancelled() or isinstance(request.exception(), DeadlineExceeded)


async def test_an_answer_is_stored_after_the_deadline_if_redis_is_slow(slow: Slow) -> None:
    mine = key(slow.store)
    await mine.claim(A)
    mine.deadline = asyncio.get_running_loop().time()
    slow.server.pause()
    await mine.finish(b"kept")  # the server is still stopped when this returns
    slow.server.resume()

    async def is_kept() -> bool:
        return (await key(slow.store).claim(A)).answer == b"kept"

    await eventually(is_kept)


async def test_answers_are_bounded_in_bytes_and_one_that_has_no_room_is_not_kept(
    store: IdempotencyStore, redis: Redis, bounds: Bounds
) -> None:
    bounds.now = IdempotencyConfig(lease=60.0, max_bytes=3 * RECORD + 1000)
    for name in "abcd":
        one = key(store, name)
        await one.claim(A)
        await one.finish(b"x" * 600)
        await next_millisecond(redis)
    large = key(store, "e")
    await large.claim(A)
    await large.finish(b"x" * 5000)

    count, total = await kept(redis)
    assert total <= 3 * RECORD + 1000
    assert count >= 1
    again = key(store, "e")
    assert (await again.claim(A)).outcome is ClaimOutcome.OWNED
    await again.finish()


async def test_without_redis_there_is_no_claim_and_after_it_there_is(bounds: Bounds) -> None:
    # Else a busy disk may delay what a kill then loses.
    with Valkey("--appendonly", "yes", "--appendfsync", "always") as server:
        redis = connect(server.url, timeout=5.0)
        async with IdempotencyStore(
            redis=redis, config=lambda: bounds.now, monotonic=asyncio.get_running_loop().time
        ) as store:
            done = key(store)
            await done.claim(A)
            await done.finish(b"kept")
            server.kill()
            with pytest.raises(DependencyUnavailable):
                await key(store).claim(A)
            server.start()

            async def is_found() -> bool:
                try:
                    return (await key(store).claim(A)).answer == b"kept"
                except DependencyUnavailable:
                    return False

            await eventually(is_found)
            assert store.statistics().failures >= 1
        await redis.aclose()
