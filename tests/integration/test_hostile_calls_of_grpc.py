"""Hostile callers of gRPC, without a key and on real sockets: they are bounded as over HTTP."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from grpc import StatusCode

from sluicegate.gateway.http.edge import HTTP_2, ListenerEdge, ListenerTls
from sluicegate.gateway.rpc.infer_route import SERVICE
from sluicegate.wire.http.request_head import MAX_FIELDS
from testing.certificates import Authority
from testing.waiting import WAIT_LIMIT, until
from tests.support.api import KEY
from tests.support.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawHttp2,
    call_head,
    frame,
    literal,
)
from tests.support.rpc import RpcClient, floats, infer, running_rpc, serialized

pytestmark = pytest.mark.anyio
_HEAD = call_head(f"{SERVICE}ModelInfer")
_CALM = b"\x00\x00\x00\x0b"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The loop of the product."""
    return "asyncio", {"loop_factory": uvloop.new_event_loop}


def head_of(block: bytes, stream: int = 1) -> Iterator[bytes]:
    """Yield the frames of a head."""
    parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    for index, part in enumerate(parts):
        flags = END_HEADERS if index == len(parts) - 1 else 0
        yield frame(CONTINUATION if index else HEADERS, part, flags=flags, stream=stream)


def call_of(message: Any, *, stream: int) -> Iterator[bytes]:
    """Yield the frames of a call with a key."""
    head = call_head(f"{SERVICE}ModelInfer", [("authorization", f"Bearer {KEY}")])
    content = serialized(message)
    yield frame(HEADERS, head, flags=END_HEADERS, stream=stream)
    content = b"\0" + struct.pack(">I", len(content)) + content
    yield frame(DATA, content, flags=END_STREAM, stream=stream)


def widest_windows() -> Iterator[bytes]:
    """Yield frames by which a client asks for as much as there is."""
    yield frame(SETTINGS, struct.pack(">HI", 4, 2**31 - 1))
    yield frame(WINDOW_UPDATE, struct.pack(">I", 2**31 - 1 - 65_535))


async def is_answered(client: RpcClient) -> bool:
    reply = await client.ask("ModelInfer", infer("minilm", "a"))
    return reply.code is StatusCode.OK and floats(reply.message) == [0.25, -0.5]


async def refusal_of(connection: RawHttp2) -> bytes:
    """Return what the last frame says before the connection is closed."""
    last = (await connection.until_closed())[-1]
    assert (last.kind, last.payload[4:8]) == (GOAWAY, _CALM)
    return last.payload[8:]


@pytest.mark.parametrize(
    "fields",
    [literal("x", "a") * 100_000, literal("x", "a") * 10_000, b"\x40\x01x\x01a" + b"\xbe" * 60_000],
    ids=["beyond the bytes", "beyond the fields", "beyond the fields, one byte each"],
)
async def test_a_head_with_many_fields_is_refused(fields: bytes) -> None:
    async with running_rpc() as rpc, rpc.client() as client, RawHttp2(rpc.port) as hostile:
        await hostile.send(*head_of(_HEAD + fields))

        assert b"100 fields" in await refusal_of(hostile)
        assert await is_answered(client)


async def test_a_head_without_end_is_refused() -> None:
    part = frame(CONTINUATION, literal("x", "a") * 3_000, stream=1)
    async with running_rpc() as rpc, rpc.client() as client, RawHttp2(rpc.port) as hostile:
        await hostile.send(frame(HEADERS, _HEAD, stream=1))
        sent = 0
        while await hostile.send(part):
            sent += len(part)

        assert sent < 32 << 20  # what buffers of both sides take, at most
        assert await is_answered(client)


async def test_a_head_has_a_time_to_arrive() -> None:
    async with (
        running_rpc(head_timeout=0.2) as rpc,
        RawHttp2(rpc.port) as begun,
        RawHttp2(rpc.port, greets=False) as silent,
        RawHttp2(rpc.port) as whole,
    ):
        await begun.send(frame(HEADERS, _HEAD, stream=1))
        await whole.send(frame(HEADERS, _HEAD, flags=END_HEADERS | END_STREAM, stream=1))

        assert b"in time" in await refusal_of(begun)
        assert b"in time" in await refusal_of(silent)
        while (one := await whole.receive()) is not None and one.kind != HEADERS:
            pass
    assert one is not None


async def test_one_call_with_too_much_metadata_is_refused_alone() -> None:
    many = [(f"x-{number}", "a") for number in range(MAX_FIELDS + 1)]
    async with running_rpc() as rpc, rpc.client() as client:
        fields = await client.ask("ModelInfer", infer("minilm", "a"), metadata=many)
        large = await client.ask("ServerMetadata", metadata=[("x", "a" * 30_000)])

        assert await is_answered(client)
    assert (fields.code, large.code) == (StatusCode.RESOURCE_EXHAUSTED, StatusCode.OK)
    assert f"{MAX_FIELDS} header fields" in fields.details


@pytest.mark.parametrize(
    "frames",
    [
        frame(PING, bytes(8)) * 1000,
        frame(SETTINGS) * 1000,
        b"".join(
            frame(HEADERS, _HEAD, flags=END_HEADERS, stream=number)
            + frame(RST_STREAM, b"\x00\x00\x00\x08", stream=number)
            for number in range(1, 1001, 2)
        ),
        b"".join(
            frame(HEADERS, _HEAD, flags=END_HEADERS, stream=number) for number in range(1, 2001, 2)
        ),
    ],
    ids=["ping", "settings", "reset", "calls"],
)
async def test_floods_leave_others_their_answers(frames: bytes) -> None:
    async with running_rpc() as rpc, rpc.client() as client:
        assert await is_answered(client)
        before = len(asyncio.all_tasks())
        hostile = [RawHttp2(rpc.port) for _ in range(4)]
        for one in hostile:
            await one.__aenter__()
            one.writer.write(frames)

        assert [await is_answered(client) for _ in range(20)] == [True] * 20
        assert rpc.api.scene.runner.begun <= 21
        for one in hostile:
            await one.__aexit__()
        await until(lambda: len(asyncio.all_tasks()) <= before)  # nothing is left


async def test_an_address_has_its_connections_and_no_more() -> None:
    edge = ListenerEdge(per_address=2)
    async with running_rpc(edge) as rpc, rpc.client() as client, RawHttp2(rpc.port) as second:
        await second.send(frame(PING, bytes(8)))
        assert await second.receive() is not None
        assert await is_answered(client)
        async with RawHttp2(rpc.port) as third:
            assert b"2 connections" in await refusal_of(third)
        second.writer.transport.abort()
        await until(lambda: sum(edge.counts._counts.values()) == 1)
        async with RawHttp2(rpc.port) as again:
            await again.send(frame(PING, bytes(8)))
            assert await again.receive() is not None


async def test_a_client_that_half_closes_ends_its_connection() -> None:
    async with running_rpc() as rpc, RawHttp2(rpc.port) as client:
        await client.send(frame(PING, bytes(8)))
        client.writer.write_eof()

        found = await client.until_closed()
    assert (PING, ACK) in [(one.kind, one.flags) for one in found]


async def test_a_client_that_does_not_read_is_closed() -> None:
    async with running_rpc() as rpc, rpc.client() as client, RawHttp2(rpc.port) as hostile:
        rpc.api.scene.runner.result = _long_label
        await hostile.send(*widest_windows())
        for number in range(1, 33, 2):
            await hostile.send(*call_of(infer("sentiment", "a"), stream=number))
        unsent, now = rpc.api.unsent, 0.0
        await until(lambda: unsent.statistics().unsent_bytes > 16 << 20)

        def is_closed() -> bool:
            nonlocal now
            now += 5.0
            unsent.check(now)
            return unsent.statistics().unsent_bytes == 0

        await until(is_closed)
        answer = await client.ask("ModelInfer", infer("sentiment", "b"))
    assert answer.code is StatusCode.OK


def _long_label(_: bytes) -> bytes:
    return b'{"labels":[{"label":"%b","score":0.5}]}' % (b"x" * 2_000_000)


@pytest.mark.parametrize("most", [1, 2], ids=["refused", "ended by grpcio"])
async def test_a_client_of_tls_that_confirms_no_end_is_closed(tmp_path: Path, most: int) -> None:
    authority = Authority(tmp_path)
    edge = ListenerEdge(tls=ListenerTls(authority.server(), protocols=HTTP_2), per_address=most)
    async with running_rpc(edge) as rpc, rpc.client(ca=authority.ca.read_bytes()) as client:
        assert await is_answered(client)

        await asyncio.to_thread(_confirm_no_end, rpc.port)


def _confirm_no_end(port: int) -> None:
    """Send what no client may, and return once the other side has closed the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = context.wrap_socket(socket.create_connection(("127.0.0.1", port), WAIT_LIMIT))
    connection.sendall(PREFACE + frame(SETTINGS, b"?"))
    with socket.socket(fileno=connection.detach()) as plain, contextlib.suppress(ConnectionError):
        plain.settimeout(WAIT_LIMIT)
        while plain.recv(4096):
            pass
