"""Whatever a server does, a caller gets the answer to what he sent, or an error."""

import asyncio
import socket
import struct
from collections.abc import Callable
from random import Random

import pytest

from sluicegate.gateway.upstream.base import Transport, TransportError, locate, wait_for_change
from sluicegate.gateway.upstream.exchange import read_body
from sluicegate.gateway.upstream.httpx_transport import HttpxTransport
from sluicegate.gateway.upstream.transport import BackendTransport
from tests.support.raw_server import HEAD, RawServer, Streams, ask

pytestmark = pytest.mark.anyio

Make = Callable[[], Transport]


@pytest.fixture(params=[BackendTransport, HttpxTransport], ids=["native", "httpx"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


_PIECES = 4
_STALE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstale"


def chunked(random: Random, token: bytes) -> bytes:
    """Return `token` in chunks, now and then with an extension or trailers."""
    at = random.randrange(1, len(token))
    extension = random.choice([b"", b";name=value"])
    trailers = random.choice([b"", b"x-trailer: 1\r\n", b"content-length: 3\r\n"])
    parts = b"".join(
        b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in (token[:at], token[at:])
    )
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return b"%b%b0\r\n%b\r\n" % (head, parts, trailers)


def mischief(random: Random, token: bytes) -> tuple[bytes, bool]:
    """Return an answer that is sound or not, and whether the connection ends with it."""
    size = len(token)
    sound = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, token)
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    both = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % size
    kinds = [
        (sound, False),
        (chunked(random, token), False),
        (interim + sound, False),
        (interim + chunked(random, token), False),
        (b"HTTP/1.1 200 OK\r\n\r\n" + token, True),
        (
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size + token,
            True,
        ),
        (sound + _STALE, False),
        (chunked(random, token) + _STALE, False),
        (sound + b"\x00junk\r\n\r\n", False),
        (sound[: random.randrange(len(sound))], True),
        (chunked(random, token)[:-3], True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size + 9, token), True),
        (both + b"%x\r\n%b\r\n0\r\n\r\n" % (size, token), True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n" + token, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n" + token, True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" + token, True),
        (b"", True),
    ]
    return random.choice(kinds)


def mischievous(random: Random) -> Streams:
    """Answer each request with its own body, in one of many ways, and in pieces."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = False
        while not ends:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            answer, ends = mischief(random, await reader.readexactly(length))
            # What follows a whole answer comes with its last byte: later it is the next one's.
            last = len(answer) - len(_STALE)
            cuts = sorted(random.sample(range(1, last), 3)) if last > _PIECES else []
            for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
                writer.write(answer[start:end])
                await writer.drain()
                await asyncio.sleep(0)

    return behave


@pytest.mark.parametrize("seed", range(6))
async def test_no_answer_is_lost_crossed_or_made_up(make: Make, seed: int) -> None:
    random = Random(seed)
    answered = failed = 0

    async def caller(name: int, transport: Transport, url: str) -> None:
        nonlocal answered, failed
        for number in range(40):
            token = b"%d-%d;" % (name, number) * 30
            try:
                status, body = await ask(transport, url, token)
            except TransportError:
                failed += 1
            else:
                assert (status, body) == (200, token)
                answered += 1

    async with RawServer(mischievous(random)).open() as server:
        transport = make()
        async with asyncio.timeout(60.0):
            await asyncio.gather(*(caller(n, transport, server.url) for n in range(4)))
        await transport.aclose()

    assert answered > 40
    assert failed > 20


async def test_headers_without_end_are_an_error(make: Make) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-more: %b\r\n" % (b"x" * 1000))
            await writer.drain()

    async with RawServer(flood).open() as server:
        transport = make()
        async with asyncio.timeout(60.0):
            with pytest.raises(TransportError):
                await ask(transport, server.url)
        await transport.aclose()


async def test_a_body_without_a_length_that_is_reset_is_no_whole_body(make: Make) -> None:
    read = asyncio.Event()

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        await read.wait()
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with RawServer(reset).open() as server:
        transport = make()
        response = await transport.send(locate(server.url).origin, HEAD, b"")
        while not (half := response.take()):
            await wait_for_change(response)
        assert half == b"half of"
        read.set()
        with pytest.raises(TransportError):
            await read_body(response, 64)
        response.close()
        await transport.aclose()


async def test_nothing_is_kept_by_a_transport_that_was_closed(make: Make) -> None:
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.read()
        gone.set()

    async with RawServer(answer).open() as server:
        transport = make()
        response = await transport.send(locate(server.url).origin, HEAD, b"")
        assert await read_body(response, 64) == b"ok"
        await transport.aclose()
        response.close()
        await asyncio.wait_for(gone.wait(), 60.0)
