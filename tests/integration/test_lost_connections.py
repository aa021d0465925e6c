"""A connection that the kernel gave up is an error, never a wait that is over at once.

Keep-alive ends a connection through a partition with `ETIMEDOUT`, which is Python's `TimeoutError`.
"""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError
from typing_extensions import override

from sluicegate.gateway.config.load import load_folder
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.events.block import STREAM
from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.redis.pipeline import StandaloneClient
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.control_values import Topic
from sluicegate.gateway.runtime.follower import RuntimeFollower
from sluicegate.gateway.runtime.runtime import compile_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.sockets.tcp_keepalive import TcpKeepalive
from sluicegate.gateway.upstream.base import locate
from sluicegate.gateway.upstream.transport import BackendTransport
from sluicegate.gateway.workers.group import GroupReader
from sluicegate.gateway.workers.ledger_marks import LedgerMarks
from sluicegate.gateway.workers.retention import SegmentRetention
from sluicegate.gateway.workers.shipper import Shipper
from sluicegate.gateway.workers.stream import AppendOutcome, EventStream
from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.events import make_event

pytestmark = pytest.mark.anyio

KEEPALIVE = TcpKeepalive(idle=7, interval=3, count=4, user_timeout=5.5)
HEARD_IN_A_SECOND = 4


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey(port=free_port()) as started:
        yield started


@pytest.fixture
async def redis(server: Valkey) -> AsyncIterator[Redis]:
    server.flush()
    client = connect(server.url, timeout=5.0)
    yield client
    await client.aclose()


def lose(connection: AbstractConnection) -> None:
    """Do what asyncio does when the kernel gives a connection up."""
    assert connection._reader is not None
    connection._reader.set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))


def is_read(connection: AbstractConnection) -> bool:
    reader: Any = connection._reader
    return reader is not None and reader._waiter is not None


async def ask(heard: Callable[[], Awaitable[bool]]) -> bool:
    return await heard()


def connections(redis: Redis) -> list[AbstractConnection]:
    pool: Any = redis.connection_pool
    return [*pool._available_connections, *pool._in_use_connections]


async def subscribers(server: Valkey) -> int:
    reply = await asyncio.to_thread(server.ask, "PUBSUB NUMSUB sg:{config}:changed")
    return int(reply.rsplit(b":", 1)[1])


async def test_a_subscription_that_is_lost_while_it_is_read_is_no_silence(redis: Redis) -> None:
    async with Control(redis).changes() as heard:
        while await heard():
            pass
        (connection,) = connections(redis)
        listening = asyncio.create_task(ask(heard))
        await until(lambda: is_read(connection), what="it is read")
        lose(connection)

        with pytest.raises(DependencyUnavailable):
            await asyncio.wait_for(listening, 10.0)


async def test_a_subscription_that_was_lost_before_it_is_read_is_no_silence(redis: Redis) -> None:
    async with Control(redis).changes() as heard:
        while await heard():
            pass
        (connection,) = connections(redis)
        lose(connection)

        with pytest.raises(DependencyUnavailable):
            await heard()


async def test_a_follower_that_lost_its_subscription_subscribes_again(
    redis: Redis, server: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "g.yaml").write_text("models: {}\n")
    settings = Settings(data_dir=tmp_path, config=tmp_path / "config")
    store = RuntimeStore(compile_runtime(load_folder(settings.config), 0))
    follower = RuntimeFollower(store=store, control=Control(redis), settings=settings, poll=0.05)
    async with follower:
        while not await subscribers(server):
            pass
        listening = [c for c in connections(redis) if c._connect_callbacks]
        lost = listening[0]._reader
        lose(listening[0])
        await until(lambda: listening[0]._reader is not lost, what="the lost one is closed")

        async with asyncio.timeout(10.0):
            while not await subscribers(server):
                pass
        version = await Control(redis).touch(Topic.ACCOUNTS)
        await until(lambda: follower._seen.accounts == version, what="it follows")


class SilentPubSub:
    """A subscription that always says at once that there is nothing."""

    def __init__(self) -> None:
        self.asked = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def subscribe(self, channel: str) -> None:
        """Do nothing."""

    async def get_message(self, timeout: float) -> None:  # noqa: ASYNC109 - redis-py's
        """Return at once."""
        self.asked += 1


class SilentRedis:
    """A client that gives such subscriptions, and whose reads of streams return at once."""

    def __init__(self) -> None:
        self.subscription = SilentPubSub()
        self.reads = 0

    def pubsub(self, *, ignore_subscribe_messages: bool) -> SilentPubSub:
        """Return it."""
        return self.subscription

    async def xreadgroup(self, *args: object, **kwargs: object) -> list[object]:
        """Return nothing."""
        self.reads += 1
        return []

    async def xautoclaim(self, *args: object, **kwargs: object) -> tuple[bytes, list[object]]:
        """Return nothing."""
        return b"0-0", []


async def test_a_listener_waits_also_where_every_answer_comes_at_once() -> None:
    redis: Any = SilentRedis()
    loop = asyncio.get_running_loop()
    async with Control(redis).changes() as heard:
        started = loop.time()
        for _ in range(HEARD_IN_A_SECOND):
            assert not await heard()

    assert loop.time() - started >= 0.99


async def test_a_reader_of_the_stream_waits_also_where_every_answer_comes_at_once() -> None:
    redis: Any = SilentRedis()
    reader = GroupReader(redis, group="g", consumer="c", count=1)
    loop = asyncio.get_running_loop()
    started = loop.time()

    assert await reader.read(wait=0.5) == []

    assert loop.time() - started >= 0.49


async def test_what_a_given_up_connection_took_late_is_soon_read(redis: Redis) -> None:
    """The other connection stands for a command that was on its way while packets were dropped."""
    now = [0.0]
    reader = GroupReader(
        redis, group="g", consumer="c", count=9, claim_after=15.0, clock=lambda: now[0]
    )
    assert await reader.read(wait=0.0) == []
    await redis.xadd(STREAM, {"a": "b"})
    await redis.xreadgroup("g", "c", {STREAM: ">"})

    assert await reader.read(wait=0.0) == []
    now[0] = 5.0
    (found,) = await reader.read(wait=0.0)

    assert found.fields == {b"a": b"b"}


async def test_a_command_that_is_given_up_is_not_sent_later(server: Valkey) -> None:
    client = connect(server.tcp_url, timeout=5.0, keepalive=KEEPALIVE)
    await client.ping()
    writer: Any = connections(client)[0]._writer
    linger = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.calcsize("ii")
    )
    await client.aclose()

    assert struct.unpack("ii", linger) == (1, 0)


async def test_a_log_that_is_always_elsewhere_does_not_make_the_shipper_spin(
    redis: Redis, tmp_path: Path
) -> None:
    class Elsewhere(EventStream):
        @override
        async def ship(self, block: object, *, after: int | None) -> AppendOutcome:
            return AppendOutcome.MOVED

    with EventLog(tmp_path, name="w0") as log:
        log.publish(make_event(1))
        stream = Elsewhere(redis, max_blocks=10)
        marks, retention = LedgerMarks(lambda _: {}), SegmentRetention(tmp_path)
        shipper = Shipper(tmp_path, stream=stream, marks=marks, retention=retention)

        waits = [await shipper.run_once() for _ in range(3)]

    assert waits == [1.0, 1.0, 1.0]


async def test_a_connection_that_was_lost_in_the_pool_is_not_used(redis: Redis) -> None:
    await redis.ping()
    (connection,) = connections(redis)
    lose(connection)

    assert await redis.ping()


async def test_a_blocking_read_of_the_stream_ends_with_an_error(
    redis: Redis, server: Valkey
) -> None:
    await redis.xgroup_create(STREAM, "g", id="0", mkstream=True)
    reader = GroupReader(redis, group="g", consumer="c", count=1)
    reading = asyncio.create_task(reader.read(wait=3600.0))
    await until(lambda: b"blocked_clients:1" in server.ask("INFO clients"), what="it blocks")
    for connection in connections(redis):
        lose(connection)

    with pytest.raises(RedisError):
        await asyncio.wait_for(reading, 10.0)


def options(connection: socket.socket) -> dict[str, int]:
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    found = {
        name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names
    }
    return found | {"on": connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)}


WANTED = {
    "TCP_KEEPIDLE": 7,
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 5500,
    "on": 1,
}


async def test_every_kind_of_connection_is_kept_alive(server: Valkey) -> None:
    client = connect(server.tcp_url, timeout=5.0, keepalive=KEEPALIVE)
    await client.ping()
    writer: Any = connections(client)[0]._writer
    pipelined = StandaloneClient(server.tcp_url, timeout=5.0, keepalive=KEEPALIVE)
    await pipelined.execute([("PING",)])
    piped: Any = pipelined._connection
    upstream = BackendTransport(tcp_keepalive=KEEPALIVE)
    origin = locate(f"http://127.0.0.1:{server.port}").origin
    called = await upstream._connect(origin, 5.0)

    transports = (writer.transport, piped._transport, called._transport)
    found = [options(transport.get_extra_info("socket")) for transport in transports]
    called.abort()
    await pipelined.aclose()
    await client.aclose()

    assert found == [WANTED] * 3


async def test_the_settings_are_those_of_every_connection() -> None:
    settings = Settings(
        tcp_keepalive_idle=7,
        tcp_keepalive_interval=3,
        tcp_keepalive_count=4,
        tcp_user_timeout=5.5,
    )

    assert settings.tcp_keepalive == KEEPALIVE


async def test_who_waits_for_anothers_connection_waits_no_longer_than_that_may_take() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        pipelined = StandaloneClient(f"redis://:secret@127.0.0.1:{port}", timeout=1.0)
        loop = asyncio.get_running_loop()
        started = loop.time()

        asked = [pipelined.execute([("PING",)]) for _ in range(20)]
        answers = await asyncio.gather(*asked, return_exceptions=True)

    assert all(isinstance(answer, OSError) for answer in answers)
    assert loop.time() - started < 10.0, "one after the other"
