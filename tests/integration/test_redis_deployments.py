"""The result cache on a Redis that is several real servers: under Sentinel, and as a cluster."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from sluicegate.gateway.cache.build import build_cache
from sluicegate.gateway.cache.result_cache import ResultCache
from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.redis.url import read_servers
from testing.redis_deployments import SentinelDeployment, is_primary, sentinel_deployment
from testing.valkey import Valkey
from testing.waiting import eventually, until
from tests.support.caching import cache_key, entry
from tests.support.clock import Clock
from tests.support.redis_cluster import cluster_of, move_slots

pytestmark = pytest.mark.anyio
_MANY = 300


@asynccontextmanager
async def cache_at(url: str) -> AsyncIterator[ResultCache]:
    """A cache without memory, patient enough for a busy machine."""
    document = CacheConfig(memory_enabled=False, redis_timeout=1.0, lease=60.0)
    loop = asyncio.get_running_loop()
    async with build_cache(
        document, url=url, clock=Clock(), monotonic=loop.time, random=lambda: 0.0
    ) as cache:
        yield cache


async def stored(cache: ResultCache, names: range) -> None:
    """Store an entry for each name and wait until Redis has them."""
    before = cache.statistics().remote.written
    for name in names:
        cache.store(cache_key(name), entry(name))
    await until(lambda: cache.statistics().remote.written == before + len(names), what="written")


async def known(cache: ResultCache, names: range) -> list[int]:
    """Return the names whose own answers are found; another's answer fails the test."""
    found = await cache.lookup([cache_key(name) for name in names])
    pairs = [(name, one.entry.payload) for name, one in zip(names, found, strict=True) if one]
    assert all(payload == str(name).encode() for name, payload in pairs)
    return [name for name, _ in pairs]


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Valkey]]:
    with cluster_of(3) as servers:
        yield servers


@pytest.fixture
def watched() -> Iterator[SentinelDeployment]:
    with sentinel_deployment() as servers:
        yield servers


async def test_keys_of_one_lookup_are_found_on_every_node_of_a_cluster(
    cluster: list[Valkey],
) -> None:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in cluster)
    async with cache_at(f"redis-cluster://{hosts}") as cache:
        await stored(cache, range(_MANY))

        assert await known(cache, range(2 * _MANY)) == list(range(_MANY))
        assert cache.statistics().remote.read_errors == 0

    sizes = [int(server.ask("DBSIZE").strip(b":\r\n")) for server in cluster]
    assert sum(sizes) == _MANY
    assert min(sizes) > _MANY // 6


async def test_outdated_answers_on_every_node_of_a_cluster_are_claimed_by_one_worker(
    cluster: list[Valkey],
) -> None:
    for server in cluster:
        server.flush()
    keys = [cache_key(name) for name in range(_MANY)]
    url = f"redis-cluster://127.0.0.1:{cluster[0].port}"
    async with cache_at(url) as one, cache_at(url) as other:
        await stored(one, range(_MANY))

        first = await one.claim(keys, lambda _found, _now: False)
        second = await other.claim(keys, lambda _found, _now: False)

    assert (any(first), all(second)) == (False, True)


async def test_a_cluster_is_found_by_any_one_of_its_nodes(cluster: list[Valkey]) -> None:
    async with cache_at(f"redis-cluster://127.0.0.1:{cluster[2].port}") as cache:
        await stored(cache, range(_MANY))
        assert await known(cache, range(_MANY)) == list(range(_MANY))


async def test_slots_that_moved_to_another_node_are_found_there(cluster: list[Valkey]) -> None:
    first, second, _ = cluster
    for server in cluster:
        server.flush()
    async with cache_at(f"redis-cluster://127.0.0.1:{first.port}") as cache:
        await known(cache, range(_MANY))
        move_slots(range(100), first, second)
        names = range(_MANY * 10)

        async def all_kept() -> bool:
            for name in names:
                cache.store(cache_key(name), entry(name))
            await until(lambda: cache.statistics().remote.queued == 0)
            return await known(cache, names) == list(names)

        await eventually(all_kept)  # `MOVED` is a miss, and a look at the owners

        assert cache.statistics().remote.breaker == "closed"


async def test_a_node_that_is_away_costs_its_own_keys_only() -> None:
    with cluster_of(3) as cluster:
        async with cache_at(f"redis-cluster://127.0.0.1:{cluster[0].port}") as cache:
            await stored(cache, range(_MANY))
            cluster[1].kill()

            found = [len(await known(cache, range(_MANY))) for _ in range(8)]

            assert all(_MANY // 2 < count < _MANY for count in found)
            assert cache.statistics().remote.breaker == "closed"


async def test_the_replica_of_a_node_that_ended_is_used_once_it_was_promoted() -> None:
    with cluster_of(3, replicated=True) as cluster:
        lost, replica = cluster[1], cluster[4]
        async with cache_at(f"redis-cluster://127.0.0.1:{cluster[0].port}") as cache:
            await stored(cache, range(_MANY))
            held = int(lost.ask("DBSIZE").strip(b":\r\n"))
            await until(lambda: replica.ask("DBSIZE") == lost.ask("DBSIZE"), what="a copy")
            lost.kill()
            missed = _MANY - len(await known(cache, range(_MANY)))
            await until(lambda: is_primary(replica), within=60, what="a new primary")

            async def all_found() -> bool:
                return await known(cache, range(_MANY)) == list(range(_MANY))

            await eventually(all_found)
            later = range(_MANY, 2 * _MANY)

            async def all_kept() -> bool:
                for name in later:
                    cache.store(cache_key(name), entry(name))
                await until(lambda: cache.statistics().remote.queued == 0)
                return await known(cache, later) == list(later)

            await eventually(all_kept)  # what is written first finds the old owner
            assert missed in (0, held)  # its own keys only, unless the replica was that quick
            assert cache.statistics().remote.breaker == "closed"


async def test_after_a_failover_the_new_primary_is_used(watched: SentinelDeployment) -> None:
    async with cache_at(watched.url) as cache:
        await stored(cache, range(_MANY))
        assert await known(cache, range(_MANY)) == list(range(_MANY))

        watched.primary.kill()
        assert await known(cache, range(_MANY)) == []
        await until(watched.has_failed_over, within=60, what="a new primary")

        async def all_found() -> bool:
            return await known(cache, range(_MANY)) == list(range(_MANY))

        await eventually(all_found)
        await stored(cache, range(_MANY, _MANY + 10))


async def test_an_operator_may_swap_primary_and_replica(watched: SentinelDeployment) -> None:
    async with cache_at(watched.url) as cache:
        await stored(cache, range(_MANY))
        await until(lambda: watched.sentinel.ask("SENTINEL FAILOVER cache") == b"+OK\r\n")
        await until(watched.has_failed_over, within=60, what="a new primary")
        # Sentinel tells the old one after ten seconds; until then it takes writes, which are lost.
        watched.primary.ask(f"REPLICAOF 127.0.0.1 {watched.replica.port}")

        async def is_kept() -> bool:
            cache.store(cache_key("new"), entry("new"))
            return await known_name(cache, "new")

        await eventually(is_kept)


async def known_name(cache: ResultCache, name: str) -> bool:
    """Tell whether `name` has an answer."""
    return await cache.lookup([cache_key(name)]) != [None]


def test_the_url_of_several_servers_says_where_they_are() -> None:
    servers = read_servers("rediss-sentinel://me:p%40ss@a:1,b,[::1]:3/2?primary=cache")

    assert servers is not None
    assert servers.addresses == (("a", 1), ("b", 26_379), ("::1", 3))
    assert servers.urls[2] == "rediss://me:p%40ss@[::1]:3/2"
    assert servers.sentinel_urls == ["rediss://a:1", "rediss://b:26379", "rediss://[::1]:3"]
    assert (servers.kind, servers.primary) == ("sentinel", "cache")
    assert read_servers("redis://a:1/0") is None
    assert read_servers("unix:///tmp/s") is None


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis-sentinel://a:1", "primary"),
        ("redis-cluster://a:1,:2", "host:port"),
        ("redis-cluster://a:port", "host:port"),
        ("redis-cluster://a:1/2", "`2`"),
    ],
)
def test_a_url_that_lacks_something_says_what(url: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        read_servers(url)


async def test_a_sentinel_may_have_an_address_of_ip_version_6(anyio_backend: str) -> None:
    async with cache_at("redis-sentinel://[::1]:1/0?primary=cache") as cache:
        assert await known(cache, range(1)) == []
