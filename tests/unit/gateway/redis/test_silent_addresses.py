"""Redis may be a name of several addresses: both clients pass over those that are silent."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress

import pytest

from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.redis.pipeline import StandaloneClient
from tests.support.silent_addresses import Names, silent

SILENT = tuple(f"127.0.0.{last}" for last in range(2, 9))
ANSWERING = "127.0.0.1"


async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every command with `OK`."""
    with closing(writer), suppress(ConnectionError):
        while chunk := await reader.read(65536):
            writer.write(b"+OK\r\n" * sum(line.startswith(b"*") for line in chunk.splitlines()))


@asynccontextmanager
async def redis_behind_silence() -> AsyncIterator[str]:
    """Yield the URL of a Redis that answers at the last address of its name only."""
    listener = socket.create_server((ANSWERING, 0))
    port = listener.getsockname()[1]
    with silent(port, *SILENT):
        async with await asyncio.start_server(agree, sock=listener):
            yield f"redis://name:{port}"


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    loop = Names()
    loop.addresses = (*SILENT, ANSWERING)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        yield runner


def test_redis_py_finds_the_address_that_answers(runner: asyncio.Runner) -> None:
    async def write() -> object:
        async with redis_behind_silence() as url, connect(url, timeout=1.0) as client:
            return await client.set("key", "value")

    assert runner.run(write()) is True


def test_the_pipelined_client_finds_the_address_that_answers(runner: asyncio.Runner) -> None:
    async def write() -> list[object]:
        async with redis_behind_silence() as url:
            client = StandaloneClient(url, timeout=1.0)
            replies = await client.execute([("SET", "key", "value")])
            await client.aclose()
        return replies

    assert runner.run(write()) == [b"OK"]
