"""Replies that no Redis should give: each is an error that the caller knows, soon, and no hang."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import pytest

from sluicegate.gateway.cache.redis_tier import RedisTier
from sluicegate.gateway.redis.cluster import ClusterClient
from sluicegate.gateway.redis.connect import open_client
from sluicegate.gateway.redis.pipeline import Command, Replies
from sluicegate.gateway.redis.sentinel import SentinelClient
from sluicegate.gateway.redis.url import read_servers
from testing.waiting import eventually
from tests.support.caching import cache_key, fetch
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio
NOBODY = b"*0\r\n"

Answer = Callable[[list[bytes]], bytes]


@asynccontextmanager
async def redis_that_says(answer: Answer) -> AsyncIterator[int]:
    """Serve a Redis that replies as told; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader(notEnoughData=None)
        try:
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not None:
                    writer.write(answer(command))
        except ConnectionResetError:
            pass  # how a connection is closed on which something was wrong
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class OddPipe:
    """Replies to every command with the same, to callers without a task where it `is_ready`."""

    def __init__(self, reply: object, *, is_ready: bool = True) -> None:
        self._reply = reply
        self._is_ready = is_ready

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """See `PipelinedClient.execute`."""
        return [self._reply] * len(commands)

    def execute_nowait(
        self, commands: Sequence[Command], on_done: Callable[[Replies], object]
    ) -> bool:
        """See `PipelinedClient.execute_nowait`."""
        if self._is_ready:
            replies = [self._reply] * len(commands)
            asyncio.get_running_loop().call_soon(on_done, replies)
        return self._is_ready

    async def aclose(self) -> None:
        """See `PipelinedClient.aclose`."""


@pytest.mark.parametrize("reply", [5, b"OK", None, [], [None], [b"a"] * 3, [None, 5], [[], None]])
@pytest.mark.parametrize("is_ready", [True, False], ids=["connected", "not yet"])
async def test_a_look_up_that_is_answered_oddly_is_a_miss_at_once(
    reply: object,
    is_ready: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    tier = RedisTier(
        reads=OddPipe(reply, is_ready=is_ready),
        writes=OddPipe(b"OK"),
        timeout=60.0,
        ttl_jitter=0.0,
        lease=0.0,
        monotonic=Clock(),
        random=lambda: 0.0,
    )

    async with tier, asyncio.timeout(60.0):
        found = await asyncio.gather(*(fetch(tier, [cache_key(name)]) for name in "ab"))

    assert found == [[None], [None]]
    assert tier.statistics().read_errors == 1


@pytest.mark.parametrize(
    "slots",
    [
        b":5\r\n",
        b"*1\r\n:5\r\n",
        b"*1\r\n*2\r\n:0\r\n:16383\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n:7\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n*1\r\n$1\r\nh\r\n",
        b"*1\r\n*3\r\n$1\r\n0\r\n:16383\r\n*2\r\n$1\r\nh\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\n\xff\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n",
        NOBODY,
    ],
)
async def test_a_node_that_cannot_say_who_owns_the_slots_is_an_error_of_the_connection(
    slots: bytes,
) -> None:
    async with redis_that_says(lambda _: slots) as port:
        client = open_client(f"redis-cluster://127.0.0.1:{port}", timeout=5.0, slow=1.0)
        with pytest.raises(OSError, match="no node of the cluster"):
            await client.execute([(b"GET", b"a")])
        await client.aclose()


async def test_a_node_that_was_away_is_asked_again_once_it_is_back() -> None:
    is_well = True

    def answer(command: list[bytes]) -> bytes:
        if not is_well:
            return b"$what is this\r\n"
        if command[0] == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port
        return b"$5\r\nvalue\r\n"

    async with redis_that_says(answer) as port:
        servers = read_servers(f"redis-cluster://127.0.0.1:{port}")
        assert servers is not None
        client = ClusterClient(servers, timeout=5.0, slow=1.0)

        async def is_answered() -> bool:
            try:
                return await client.execute([(b"GET", b"a")]) == [b"value"]
            except OSError:
                return False

        assert await is_answered()
        is_well = False
        for _ in range(10):
            await is_answered()
        is_well = True

        # Seldom enough that the slots are looked up anew before each call.
        await eventually(is_answered, within=6.0, every=1.2)
        await client.aclose()


@pytest.mark.parametrize(
    "where", [NOBODY, b"*1\r\n$1\r\nh\r\n", b"*2\r\n:1\r\n:2\r\n", b"*2\r\n$1\r\nh\r\n$1\r\nx\r\n"]
)
async def test_a_sentinel_that_answers_oddly_is_passed_over(where: bytes) -> None:
    sound = b"*2\r\n$5\r\nthere\r\n$4\r\n6379\r\n"
    async with redis_that_says(lambda _: where) as odd, redis_that_says(lambda _: sound) as well:
        url = f"redis-sentinel://127.0.0.1:{odd},127.0.0.1:{well}/0?primary=main"
        servers = read_servers(url)
        assert servers is not None
        client = SentinelClient(servers, timeout=15.0)

        assert await client.locate() == ("there", 6379)
        await client.aclose()
