"""The state Redis may move to another server: each connection goes to the one that has the keys."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError, RedisError

from gateway.config.load import load_folder
from gateway.errors import ConfigurationError
from gateway.events.log import EventLog
from gateway.rate_limit.redis_limiter import RedisRateLimiter
from gateway.redis.client import connect
from gateway.redis.scripts import ScriptClient, open_scripts
from gateway.runtime.control import CONTROL_KEYS, Control, Topic
from gateway.runtime.follower import RuntimeFollower
from gateway.runtime.runtime import compile_runtime
from gateway.runtime.store import RuntimeStore
from gateway.settings import Settings
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE
from loadtests.harness.ports import free_port
from loadtests.harness.redis_deployments import cluster_of, sentinel_deployment
from loadtests.harness.valkey import Valkey
from loadtests.harness.waiting import eventually, until
from loadtests.windows import local_share
from tests.support.events import make_event
from tests.support.limits import charge, rule
from tests.support.pipeline import open_pipeline, running

pytestmark = pytest.mark.anyio

RULE, SHARE, WORKERS = rule(200), 0.1, 2
WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"


class NamingSentinel:
    """Names one of two servers as the primary, as a Sentinel does."""

    def __init__(self, primary: Valkey, replica: Valkey) -> None:
        self.primary, self.replica = primary, replica
        self.named = primary
        self.port = 0

    @property
    def url(self) -> str:
        """The URL by which its primary is found."""
        return f"redis-sentinel://127.0.0.1:{self.port}/0?primary=state"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one query."""
        await reader.read(65_536)
        port = str(self.named.port)
        writer.write(f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n".encode())
        with suppress(ConnectionError):
            await reader.read(65_536)
        writer.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Valkey, Valkey]]:
    with Valkey(port=free_port()) as one, Valkey(port=free_port()) as other:
        yield one, other


@pytest.fixture
async def sentinel(servers: tuple[Valkey, Valkey]) -> AsyncIterator[NamingSentinel]:
    for server in servers:
        server.ask("REPLICAOF NO ONE")
        server.configure("min-replicas-to-write", "0")
        server.flush()
    named = NamingSentinel(*servers)
    async with await asyncio.start_server(named.answer, "127.0.0.1", 0) as listener:
        named.port = listener.sockets[0].getsockname()[1]
        yield named


@asynccontextmanager
async def client_of(sentinel: NamingSentinel, *, bound: float = 5.0) -> AsyncIterator[Redis]:
    client = connect(sentinel.url, timeout=bound)
    yield client
    await client.aclose()


def follower_of(redis: Redis, folder: Path) -> RuntimeFollower:
    (folder / "config").mkdir()
    (folder / "config" / "g.yaml").write_text("models: {}\n")
    settings = Settings(data_dir=folder, config=folder / "config")
    store = RuntimeStore(compile_runtime(load_folder(settings.config), 0))
    return RuntimeFollower(store=store, redis=redis, settings=settings, poll=0.1)


@pytest.mark.parametrize("fault", ["demoted", "without replicas"])
@pytest.mark.parametrize("by", ["command", "script", "transaction"])
async def test_a_primary_that_lost_its_role_is_left_at_once(
    sentinel: NamingSentinel, fault: str, by: str
) -> None:
    async def write(client: Redis) -> None:
        if by == "command":
            await client.set("key", "value")
        elif by == "script":
            await client.register_script(WRITE)(keys=["key"], args=["value"])
        else:
            async with client.pipeline(transaction=True) as together:
                _ = together.set("key", "value")
                _ = together.incr("count")
                await together.execute()

    async with client_of(sentinel) as client:
        await write(client)
        if fault == "demoted":
            sentinel.primary.ask(f"REPLICAOF 127.0.0.1 {free_port()}")
        else:
            sentinel.primary.configure("min-replicas-to-write", "1")
        sentinel.named = sentinel.replica

        with pytest.raises(RedisConnectionError):
            await write(client)
        await write(client)

        assert sentinel.replica.ask("GET key") == b"$5\r\nvalue\r\n"


async def test_a_primary_that_hangs_costs_one_timeout(sentinel: NamingSentinel) -> None:
    async with client_of(sentinel, bound=0.5) as client:
        await asyncio.gather(*(client.blpop(["none"], timeout=0.05) for _ in range(8)))
        sentinel.primary.pause()
        try:
            sentinel.named = sentinel.replica
            with pytest.raises(RedisError):
                await client.set("key", "value")
            assert await client.set("key", "value")
            assert all(await asyncio.gather(*(client.set("key", "value") for _ in range(8))))
        finally:
            sentinel.primary.resume()


class Load:
    """Admits requests by two workers' limiters, and publishes the event of each."""

    def __init__(self, limiters: Sequence[RedisRateLimiter], log: EventLog) -> None:
        self.limiters = limiters
        self._log = log
        self.answered = self.refused = 0

    async def offer(self, holds: Callable[[], bool]) -> None:
        """Offer requests until `holds()`."""

        async def step() -> bool:
            for limiter in self.limiters:
                if (await limiter.admit([charge(of=RULE)])).allowed:
                    self._log.publish(make_event(self.answered))
                    self.answered += 1
                else:
                    self.refused += 1
            return holds()

        await eventually(step, every=0.02)

    def is_decided_by_redis(self) -> bool:
        """Whether no limiter takes Redis for away."""
        return all(one.statistics().breaker == "closed" for one in self.limiters)


@asynccontextmanager
async def load_on(redis: ScriptClient, events: Path) -> AsyncIterator[Load]:
    """Enter two limiters and an event log."""
    async with AsyncExitStack() as stack:
        limiters = [
            RedisRateLimiter(
                redis=redis,
                holder=f"worker {number}",
                local_share=SHARE,
                monotonic=asyncio.get_running_loop().time,
            )
            for number in range(WORKERS)
        ]
        for limiter in limiters:
            await stack.enter_async_context(limiter)
        yield Load(limiters, stack.enter_context(EventLog(events, name="w0")))


async def test_a_failover_under_load_loses_and_doubles_no_event_and_keeps_limits(
    tmp_path: Path,
) -> None:
    # Before anything is sent: local shares, and a call of each worker that no replica had yet.
    alone = local_share(RULE, share=SHARE, workers=WORKERS, away=60.0)
    bound = RULE.capacity + alone + WORKERS * (1 + 2 * RULE.capacity // 50)
    with sentinel_deployment() as watched:
        redis = connect(watched.url, key=CONTROL_KEYS, timeout=1.0)
        async with (
            redis,
            open_pipeline(tmp_path, watched.url) as pipeline,
            follower_of(redis, tmp_path) as follower,
            running(pipeline.shipper().run, pipeline.billing().run),
            load_on(redis, pipeline.events) as load,
        ):
            await load.offer(lambda: load.answered >= 30 and pipeline.billed() > 0)
            assert (load.refused, load.is_decided_by_redis()) == (0, True)

            watched.primary.kill()
            await load.offer(watched.has_failed_over)
            await load.offer(load.is_decided_by_redis)
            load.refused = 0
            await load.offer(lambda: load.refused >= 20)

            assert RULE.capacity <= load.answered <= bound
            await until(lambda: pipeline.billed() == load.answered, what="all are billed")
            version = await Control(redis).touch(Topic.ACCOUNTS)
            await until(lambda: follower._seen.accounts == version, what="it follows")


async def test_a_cluster_keeps_limits_events_and_configuration(tmp_path: Path) -> None:
    tenants = [f"tenant-{number}" for number in range(12)]
    with cluster_of(3) as cluster:
        url = f"redis-cluster://127.0.0.1:{cluster[0].port}"
        redis = connect(url, key=CONTROL_KEYS, timeout=5.0)
        scripts = open_scripts(url, state=redis, timeout=5.0, keepalive=DEFAULT_KEEPALIVE)
        async with (
            redis,
            aclosing(scripts),
            open_pipeline(tmp_path, url) as pipeline,
            follower_of(redis, tmp_path) as follower,
            running(pipeline.shipper().run, pipeline.billing().run),
            load_on(scripts, pipeline.events) as load,
        ):
            await load.offer(lambda: load.answered >= 100)
            for tenant in tenants:
                for limiter in load.limiters:
                    bucket = f"rl:{{{tenant}}}:t:minute"
                    assert (await limiter.admit([charge(of=RULE, bucket=bucket)])).allowed
            version = await Control(redis).touch(Topic.ACCOUNTS)
            await until(lambda: follower._seen.accounts == version, what="it follows")
            await until(lambda: pipeline.billed() == load.answered, what="all are billed")

            for limiter in load.limiters:
                counts = limiter.statistics()
                assert (counts.failures, counts.admitted_by_redis > len(tenants) // 2) == (0, True)
        assert all(server.ask("DBSIZE") != b":0\r\n" for server in cluster)


def test_a_cluster_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be a cluster"):
        _ = connect("redis-cluster://a:1", timeout=1.0)
