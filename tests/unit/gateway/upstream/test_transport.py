"""The transport speaks HTTP/1.1 as backends do, and keeps connections only while they are sound."""

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest

from sluicegate.gateway.upstream.base import Transport, TransportError, locate
from sluicegate.gateway.upstream.httpx_transport import HttpxTransport
from sluicegate.gateway.upstream.transport import BackendTransport
from tests.support.raw_server import HEAD, RawServer, ask, replying_with

pytestmark = pytest.mark.anyio

Make = Callable[[], Transport]


@pytest.fixture(params=[BackendTransport, HttpxTransport], ids=["native", "httpx"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LONG_HEAD = b"HTTP/1.1 200 OK\r\nx-long: %b\r\ncontent-length: 2\r\n\r\nok" % (b"x" * 30_000)


@pytest.mark.parametrize("reply", [OK, LONG_HEAD], ids=["short head", "long head"])
async def test_a_sound_connection_is_used_again(reply: bytes) -> None:
    async with RawServer(replying_with(reply, reply, reply)).open() as server:
        transport = BackendTransport()
        answers = [await ask(transport, server.url) for _ in range(3)]
        await transport.aclose()

    assert answers == [(200, b"ok")] * 3
    assert server.connections == 1


async def test_a_connection_is_not_kept_for_longer_than_told() -> None:
    async with RawServer(replying_with(OK, OK)).open() as server:
        transport = BackendTransport(keepalive=0.0)
        for _ in range(2):
            await ask(transport, server.url)
        await transport.aclose()

    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
    ],
)
async def test_a_connection_that_ends_with_its_answer_is_not_used_again(
    make: Make, answer: bytes, body: bytes
) -> None:
    async with RawServer(replying_with(answer)).open() as server:
        transport = make()
        answers = [await ask(transport, server.url) for _ in range(2)]
        await transport.aclose()

    assert answers == [(200, body)] * 2
    assert server.connections == 2


async def test_chunks_are_joined_and_interim_answers_passed_over(make: Make) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    async with RawServer(
        replying_with(b"HTTP/1.1 102 Processing\r\n\r\n" + chunked)
    ).open() as server:
        transport = make()
        answer = await ask(transport, server.url)
        await transport.aclose()

    assert answer == (200, b"abc")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"220 smtp ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_what_is_cut_or_no_http_is_an_error(make: Make, answer: bytes) -> None:
    async with RawServer(replying_with(answer)).open() as server:
        transport = make()
        with pytest.raises(TransportError):
            await ask(transport, server.url)
        await transport.aclose()


async def test_more_than_was_asked_for_spoils_the_connection(make: Make) -> None:
    async with RawServer(replying_with(OK + OK, OK)).open() as server:
        transport = make()
        answers = [await ask(transport, server.url) for _ in range(2)]
        await transport.aclose()

    assert answers == [(200, b"ok")] * 2
    assert server.connections == 2


async def test_a_refusal_is_heard_while_the_body_is_still_sent() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read()

    async with RawServer(refuse).open() as server:
        transport = BackendTransport()
        async with asyncio.timeout(60.0):
            response = await transport.send(locate(server.url).origin, HEAD, b"x" * 65_536_000)
        status = response.status
        response.close()
        await transport.aclose()

    assert status == 413


async def test_a_reader_who_pauses_does_not_grow_memory(make: Make) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 268435456\r\n\r\n")
        for _ in range(4096):
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with RawServer(flood).open() as server:
        transport = make()
        response = await transport.send(locate(server.url).origin, HEAD, b"")
        seen = -1
        while seen != sent:  # until the server cannot go on
            seen = sent
            for _ in range(200):
                await asyncio.sleep(0)
        response.close()
        await transport.aclose()

    assert sent < 64 * 1024 * 1024


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///call", "http://a:99999", "http://["])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        locate(url)


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://a", b"a", b""),
        ("http://user:secret@a:81/", b"a:81", b""),
        ("https://[::1]:82/zone/b/", b"[::1]:82", b"/zone/b"),
        ("http://a/two words", b"a", b"/two%20words"),
    ],
)
def test_an_address_is_taken_apart(url: str, host: bytes, path: bytes) -> None:
    assert locate(url)[1:] == (host, path)


# One thread resolves names, in turn: when the second look-up is done, so is the first.
_LOOKED_UP_TOO_LATE = """
import asyncio, gc, uvloop
from sluicegate.gateway.upstream.base import TransportError, locate
from sluicegate.gateway.upstream.transport import BackendTransport

async def main():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    transport = BackendTransport()
    try:
        await transport.send(locate("http://name.invalid:1").origin, b"", b"", connect_timeout=0.0)
    except TransportError as error:
        print(error)
    await asyncio.get_running_loop().getaddrinfo("localhost", 1)
    await asyncio.sleep(0)
    gc.collect()
    await transport.aclose()
    print(complaints)

uvloop.run(main())
"""


def test_a_name_that_is_resolved_too_late_leaves_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOOKED_UP_TOO_LATE],
        env={"UV_THREADPOOL_SIZE": "1"},
        check=True,
        capture_output=True,
        text=True,
    )

    assert done.stdout.splitlines() == ["no connection in time", "[]"]
