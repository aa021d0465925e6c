"""The state Redis may move to another server: each connection goes to the one that has the keys."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError, RedisError

from loadtests.windows import local_share
from sluicegate.gateway.config.load import load_folder
from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.rate_limit.redis_limiter import RedisRateLimiter
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.redis.scripts import ScriptClient, open_scripts
from sluicegate.gateway.runtime.control import CONTROL_KEYS, Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.runtime.follower import RuntimeFollower
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE
from testing.ports import free_port
from testing.redis_deployments import sentinel_deployment
from testing.valkey import Valkey
from testing.waiting import eventually, until
from tests.support.events import make_event
from tests.support.ledgers import sums
from tests.support.limits import charge, rule
from tests.support.pipeline import open_pipeline, running
from tests.support.redis_cluster import cluster_of, move_slots

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
        with closing(writer), suppress(ConnectionError):
            await reader.read(65_536)
            port = str(self.named.port)
            writer.write(f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n".encode())
            await reader.read(65_536)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Valkey, Valkey]]:
    hasty = ("--repl-diskless-sync-delay", "0")
    with Valkey(*hasty, port=free_port()) as one, Valkey(*hasty, port=free_port()) as other:
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
    async with aclosing(connect(sentinel.url, timeout=bound)) as client:
        yield client


def follower_of(redis: Redis, folder: Path) -> RuntimeFollower:
    (folder / "config").mkdir()
    (folder / "config" / "g.yaml").write_text("models: {}\n")
    settings = Settings(data_dir=folder, config=folder / "config")
    store = RuntimeStore(compile_runtime(load_folder(settings.config), 0))
    return RuntimeFollower(store=store, control=Control(redis), settings=settings, poll=0.1)


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
    async with client_of(sentinel, bound=2.0) as client:
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


def demote(sentinel: NamingSentinel) -> None:
    """Fail over to the replica, whatever it lacks."""
    sentinel.named = sentinel.replica
    sentinel.primary.ask(f"REPLICAOF 127.0.0.1 {sentinel.replica.port}")


async def cut_off(sentinel: NamingSentinel) -> None:
    """Let the replica have all that the primary has, and nothing that comes later."""
    answer = await asyncio.to_thread(sentinel.primary.ask, "WAIT 1 10000")
    assert answer == b":1\r\n"
    sentinel.replica.ask("REPLICAOF NO ONE")


@pytest.fixture
async def replicated(sentinel: NamingSentinel) -> NamingSentinel:
    sentinel.replica.ask(f"REPLICAOF 127.0.0.1 {sentinel.primary.port}")
    await until(
        lambda: b"master_link_status:up" in sentinel.replica.ask("INFO replication"), what="a copy"
    )
    return sentinel


@pytest.mark.parametrize("unreplicated", ["billed", "shipped"])
async def test_events_that_no_replica_had_are_shipped_again_and_billed_once(
    replicated: NamingSentinel, tmp_path: Path, unreplicated: str
) -> None:
    async with open_pipeline(tmp_path, replicated.url) as pipeline:
        shipper = pipeline.shipper()
        with EventLog(pipeline.events, name="w0") as log:
            async with running(shipper.run):
                async with running(pipeline.billing().run):
                    fill(log, 0, 50)
                    await until(lambda: pipeline.billed() == 50, what="the first are billed")
                    await cut_off(replicated)
                    if unreplicated == "billed":
                        fill(log, 50, 50)
                        await until(lambda: pipeline.billed() == 100, what="all are billed")
                if unreplicated == "shipped":
                    fill(log, 50, 50)
                    await until(lambda: shipper.statistics().events == 100, what="all are shipped")

                demote(replicated)
                fill(log, 100, 50)
                async with running(pipeline.billing().run):
                    await until(lambda: pipeline.billed() == 150, what="all are billed")

        found = sums(pipeline.ledger)
        assert (found.events, found.lost, found.dead_letters, found.waiting) == (150, 0, 0, 0)


async def test_limits_forget_what_no_replica_had_and_no_more(
    replicated: NamingSentinel, tmp_path: Path
) -> None:
    lease = RULE.capacity // 50
    async with (
        client_of(replicated, bound=60.0) as redis,
        load_on(redis, tmp_path, workers=1, local_share=0.0) as load,
    ):
        await load.offer(lambda: load.answered >= 60)
        await cut_off(replicated)
        before = load.answered
        await load.offer(lambda: load.answered >= 120)
        forgotten = load.answered - before + lease
        assert load.refused == 0

        demote(replicated)
        await load.offer(lambda: load.refused >= 20)

    alone = 1
    assert RULE.capacity < load.answered <= RULE.capacity + forgotten + alone


def fill(log: EventLog, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.publish(make_event(number))


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

        await eventually(step, every=0.01)

    def is_decided_by_redis(self) -> bool:
        """Whether no limiter takes Redis for away."""
        return all(one.statistics().breaker == "closed" for one in self.limiters)


@asynccontextmanager
async def load_on(
    redis: ScriptClient, events: Path, *, workers: int = WORKERS, local_share: float = SHARE
) -> AsyncIterator[Load]:
    """Enter a limiter of each worker, and an event log."""
    async with AsyncExitStack() as stack:
        limiters = [
            RedisRateLimiter(
                redis=redis,
                holder=f"worker {number}",
                local_share=local_share,
                monotonic=asyncio.get_running_loop().time,
            )
            for number in range(workers)
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

            slot = key_slot(CONTROL_KEYS.encode())
            (old,) = (each for each in cluster if owns(each, slot))
            new = next(each for each in cluster if each is not old)
            old.flush()
            move_slots([slot], old, new)
            await eventually(lambda: is_touched(redis))
            assert b"version" in new.ask(f"CLUSTER GETKEYSINSLOT {slot} 100")


def owns(server: Valkey, slot: int) -> bool:
    return server.ask(f"CLUSTER COUNTKEYSINSLOT {slot}") != b":0\r\n"


async def is_touched(redis: Redis) -> bool:
    with suppress(DependencyUnavailable):
        return bool(await Control(redis).touch(Topic.ACCOUNTS))
    return False


def test_a_cluster_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be a cluster"):
        _ = connect("redis-cluster://a:1", timeout=1.0)
