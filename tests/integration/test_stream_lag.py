"""The lag of consumer groups is right on every Redis and Valkey of this machine.

Redis 7.0 forgets how many entries a group has read when it reads its append-only file again, and
when a replica takes over.
"""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from sluicegate.gateway.events.block import STREAM, pack
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.workers.group import GroupReader, StreamEntry
from sluicegate.gateway.workers.stream import BILLING, EventStream
from testing.ports import free_port
from testing.valkey import Valkey, server_program
from testing.waiting import wait_until

pytestmark = pytest.mark.anyio
_BLOCKS = 60
_DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Stream:
    """The stream of one server, as shipper and billing use it."""

    def __init__(self, server: Valkey) -> None:
        self.redis: Redis = connect(server.url, key=STREAM, timeout=60.0)
        self._stream = EventStream(self.redis, max_blocks=1000)
        self._group = GroupReader(self.redis, group=BILLING, consumer="one", count=1)

    async def ship(self, first: int, last: int) -> None:
        """Append the blocks `first` to `last`, of one event each."""
        for number in range(first, last + 1):
            block = pack("w0-1", number, [b"\x01"])
            await self._stream.ship(block, after=number - 1 or None)

    async def read(self, count: int) -> list[StreamEntry]:
        """Have the group take `count` blocks."""
        return [entry for _ in range(count) for entry in await self._group.read(wait=0.001)]

    async def bill(self, count: int) -> None:
        """Have the group take and acknowledge `count` blocks."""
        if entries := await self.read(count):
            await self._group.acknowledge(entries)

    async def lag(self) -> int:
        """Trim the stream, and return the group's lag."""
        return (await self._stream.trim()).lagging[BILLING]


Move = Callable[[], Valkey]


def restarted(stack: ExitStack, program: str) -> tuple[Valkey, Move]:
    """Return a server, and what restarts it from its append-only file."""
    plain = ("--aof-use-rdb-preamble", "no")
    server = stack.enter_context(Valkey(*_DURABLE, *plain, program=program))

    def move() -> Valkey:
        server.kill()
        server.start()
        return server

    return server, move


def promoted(stack: ExitStack, program: str) -> tuple[Valkey, Move]:
    """Return a server, and what makes its replica the primary."""
    server = stack.enter_context(Valkey(port=free_port(), program=program))
    replica = Valkey(port=free_port(), program=program)
    replica.replica_of = server.port
    stack.enter_context(replica)
    wait_until(lambda: b"link_status:up" in replica.ask("INFO replication"), what="a replica")

    def move() -> Valkey:
        server.kill()
        assert replica.ask("REPLICAOF NO ONE") == b"+OK\r\n"
        return replica

    return server, move


PROGRAMS = {server_program(), shutil.which("redis-server"), shutil.which("valkey-server")} - {None}


@pytest.fixture(params=sorted(map(str, PROGRAMS)), ids=lambda program: Path(program).name)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[restarted, promoted])
def moving(request: pytest.FixtureRequest, program: str) -> Iterator[tuple[Valkey, Move]]:
    with ExitStack() as stack:
        yield request.param(stack, program)


@pytest.fixture(params=[False, True], ids=["trimmed", "held"])
async def stream(
    request: pytest.FixtureRequest, moving: tuple[Valkey, Move]
) -> AsyncIterator[Stream]:
    """A stream of which billing has read a part, on a server that has moved since.

    It is trimmed to what billing has not read, or held by a group that reads nothing.
    """
    server, move = moving
    before = Stream(server)
    async with before.redis:
        if request.param:
            await before.redis.xgroup_create(STREAM, "idle", id="0", mkstream=True)
        await before.ship(1, _BLOCKS)
        await before.bill(_BLOCKS - 20)
        assert await before.lag() == 20
        if b"connected_slaves:0" not in server.ask("INFO replication"):
            assert await before.redis.wait(1, 60_000) == 1
    after = Stream(move())
    async with after.redis:
        yield after


async def test_lag_is_never_less_than_what_is_unread_nor_more_than_the_stream(
    stream: Stream,
) -> None:
    for left in (20, 15, 7, 1):
        await stream.bill(await unread(stream.redis) - left)

        assert left <= await stream.lag() <= await stream.redis.xlen(STREAM)


async def test_lag_is_nothing_where_everything_is_delivered(stream: Stream) -> None:
    await stream.bill(20)
    assert await stream.lag() == 0

    await stream.ship(_BLOCKS + 1, _BLOCKS + 3)
    assert await stream.lag() == 3

    await stream.bill(3)
    assert await stream.lag() == 0


async def test_lag_of_an_emptied_stream_is_nothing(stream: Stream) -> None:
    await stream.read(5)
    await stream.redis.xtrim(STREAM, maxlen=0, approximate=False)

    assert await stream.lag() == 0


async def unread(redis: Redis) -> int:
    """Return how many entries were never delivered to the group."""
    (billing, *_) = await redis.xinfo_groups(STREAM)
    return len(await redis.xrange(STREAM, min=b"(" + billing["last-delivered-id"]) or [])
