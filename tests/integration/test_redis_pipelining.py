"""The pipelined client keeps replies with their commands, and fails soon and clearly."""

import asyncio
from collections.abc import Iterator

import pytest

from sluicegate.gateway.redis.pipeline import Replies, StandaloneClient
from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import eventually, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def own() -> Iterator[Valkey]:
    """A server the test may stop, on a port as well."""
    with Valkey(port=free_port()) as server:
        yield server


async def is_answered(client: StandaloneClient) -> None:
    """Wait until the server answers within the time-out, on a machine that may stall."""

    async def ping() -> bool:
        try:
            return len(await client.execute([("PING",)])) == 1
        except OSError:
            return False

    await eventually(ping)


async def test_replies_belong_to_their_commands(valkey: str) -> None:
    client = StandaloneClient(valkey, timeout=5.0)
    await client.execute([("SET", b"a", 1), ("SET", b"b", b"\x00\xff")])

    replies = await asyncio.gather(
        *(client.execute([("GET", b"a"), ("GET", b"b"), ("GET", b"c")]) for _ in range(50))
    )
    await client.aclose()

    assert replies == [[b"1", b"\x00\xff", None]] * 50


async def test_an_error_of_one_command_is_its_reply(valkey: str) -> None:
    client = StandaloneClient(valkey, timeout=5.0)
    first, second = await client.execute([("NONSENSE",), ("PING",)])
    await client.aclose()

    assert isinstance(first, Exception)
    assert second in {"PONG", b"PONG"}


async def test_a_cancelled_wait_costs_nobody_his_reply(valkey: str) -> None:
    client = StandaloneClient(valkey, timeout=5.0)
    await client.execute([("SET", b"a", b"mine")])
    gone = asyncio.create_task(client.execute([("ECHO", b"his")]))
    stays = asyncio.create_task(client.execute([("GET", b"a")]))
    await asyncio.wait({gone, stays}, timeout=0)  # they begin
    gone.cancel()

    assert await stays == [b"mine"]
    await client.aclose()


async def test_callers_without_a_task_are_called_back_once_it_is_connected(valkey: str) -> None:
    client = StandaloneClient(valkey, timeout=5.0)
    told: list[Replies] = []
    before = client.execute_nowait([("PING",)], told.append)
    await client.execute([("SET", b"a", b"mine")])

    after = client.execute_nowait([("GET", b"a"), ("NONSENSE",)], told.append)
    at_once = list(told)
    (awaited,) = await client.execute([("GET", b"a")])
    await client.aclose()

    assert (before, after, at_once, awaited) == (False, True, [], b"mine")
    ((value, error),) = [replies for replies in told if isinstance(replies, list)]
    assert value == b"mine"
    assert isinstance(error, Exception)
    assert not client.execute_nowait([("PING",)], told.append)


async def test_those_called_back_are_told_when_redis_is_silent_or_goes(own: Valkey) -> None:
    client = StandaloneClient(own.url, timeout=0.1)
    told: list[Replies] = []
    await is_answered(client)
    own.pause()
    client.execute_nowait([("PING",)], told.append)
    await until(lambda: len(told) == 1, what="told of the silence")
    own.resume()
    await is_answered(client)
    own.pause()
    client.execute_nowait([("PING",)], told.append)
    own.kill()
    await until(lambda: len(told) == 2, what="told of the end")
    await client.aclose()

    assert [type(error) for error in told] == [TimeoutError, ConnectionError]


async def test_after_a_restart_it_connects_anew(own: Valkey) -> None:
    client = StandaloneClient(own.tcp_url, timeout=5.0)
    await client.execute([("PING",)])
    own.kill()
    with pytest.raises(ConnectionError):
        await client.execute([("PING",)])
    own.start()

    assert len(await client.execute([("PING",)])) == 1
    await client.aclose()


async def test_silence_ends_the_wait(own: Valkey) -> None:
    client = StandaloneClient(own.url, timeout=0.1)
    await is_answered(client)
    own.pause()
    try:
        with pytest.raises(TimeoutError):
            await client.execute([("PING",)])
    finally:
        own.resume()
    await client.aclose()


async def test_a_wrong_password_is_said(own: Valkey) -> None:
    client = StandaloneClient(f"redis://:wrong@127.0.0.1:{own.port}/0", timeout=5.0)
    with pytest.raises(ConnectionError, match="refused"):
        await client.execute([("PING",)])


async def test_databases_are_apart(own: Valkey) -> None:
    zero, one = (
        StandaloneClient(f"redis://127.0.0.1:{own.port}/{number}", timeout=5.0) for number in (0, 1)
    )
    await zero.execute([("SET", b"a", b"zero")])

    assert await one.execute([("GET", b"a")]) == [None]
    await zero.aclose()
    await one.aclose()


async def test_what_is_no_redis_is_an_error() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = StandaloneClient(f"redis://127.0.0.1:{port}", timeout=5.0)
        with pytest.raises(ConnectionError):
            await client.execute([("PING",)])
        await client.aclose()
